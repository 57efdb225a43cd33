"""Test charts as files, heat maps and lines: whole on their own, every value said, no name on another."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.drawing import files, labels, lines, matrix, roofline, svg
from tests.drawing.test_charts import parsed, texts

SVG = "{http://www.w3.org/2000/svg}"
HEAT = matrix.heat_map("times", "rows", "columns", {(8, 2): 1.0, (8, 1): 3.0, (16, 1): 5.0, (16, 2): 9.0, (16, 4): 2.0})


def test_a_file_needs_nothing_else(tmp_path: Path) -> None:
    """Neither variables nor a page's style sheet, and every class that it uses has its rule."""
    path = files.save(HEAT, tmp_path / "heat.svg", "bench.json sha256:<0>")
    root = ElementTree.parse(path).getroot()
    style = root.findtext(f"{SVG}style") or ""
    assert root.tag == f"{SVG}svg" and "var(" not in style and "@media" not in style
    used = {kind for element in root.iter() for kind in (element.get("class") or "").split()}
    assert used and all(re.search(rf"\.{kind}\b", style) for kind in used)
    assert files.source_of(path) == "bench.json sha256:<0>"
    assert files.source_of(files.save(HEAT, path)) is None and files.source_of(tmp_path / "none.svg") is None


def test_a_heat_map_says_every_time_and_frames_the_least() -> None:
    root = parsed(HEAT)
    cells = {rect.findtext("title"): rect for rect in root.iter("rect")}
    times = {(8, 1): "3.00", (8, 2): "1.00", (16, 1): "5.00", (16, 2): "9.00", (16, 4): "2.00"}
    assert [*cells] == [f"rows {row}, columns {column}: {ms} ms" for (row, column), ms in times.items()]
    assert {*times.values(), "8", "16", "1", "2", "4", "rows", "columns"} <= {*texts(root)}
    opacities = [float(cell.get("fill-opacity", "nan")) for cell in cells.values()]
    assert opacities == pytest.approx([matrix.FULL * (ms - 1) / 8 for ms in (3, 1, 5, 9, 2)], abs=1e-3)
    (frame,) = (path.get("d", "") for path in root.iter("path"))
    least = cells["rows 8, columns 2: 1.00 ms"]
    assert frame.startswith(f"M{least.get('x')} {least.get('y')}h")


@pytest.mark.parametrize("rows", [(0,), (8, 16)])
def test_a_heat_map_of_one_time_for_all(rows: tuple[int, ...]) -> None:
    chart = parsed(matrix.heat_map("one", "", "TILE", {(row, 8): 1.0 for row in rows}))
    assert {cell.get("fill-opacity") for cell in chart.iter("rect")} == {"0.000"}


@pytest.mark.parametrize("logarithmic", [True, False])
def test_every_line_has_its_name_beside_no_other(logarithmic: bool) -> None:
    names = [f"line {number}" for number in range(40)]
    drawn = [lines.Line(name, "c1", [(1, 5.0), (10, 2.0), (100, 1 + at / 100)]) for at, name in enumerate(names)]
    root = parsed(
        lines.chart("forty", "images", [lines.Panel("ms", drawn)], logarithmic=logarithmic, mark=(10, "here"))
    )
    found = {"".join(text.itertext()): float(text.get("y", "nan")) for text in root.iter("text")}
    heights = sorted(found[name] for name in names)
    assert all(below - above >= labels.HEIGHT - 0.1 for above, below in pairwise(heights))
    assert heights == [found[name] for name in reversed(names)]  # the greatest on top
    assert len([*root.iter("circle")]) == 3 * len(names) and {"here", "images →", "ms ↑"} <= found.keys()


def test_lines_of_one_point_are_dots() -> None:
    root = parsed(lines.chart("one", "epoch", [lines.Panel("loss", [lines.Line("training", "c2", [(1, 0.5)])])]))
    assert [dot.findtext("title") for dot in root.iter("circle")] == ["training, 1: 0.500"]


def test_labels_in_a_column() -> None:
    high = labels.HEIGHT
    assert labels.spread([10, 11, 90], 0, 100) == [10, 10 + high, 90]
    assert labels.spread([99, 100, 100], 0, 100) == [100 - 2 * high, 100 - high, 100]
    assert labels.spread([-5], 0, 100) == [0] and labels.spread([], 0, 100) == []


def test_a_crowded_roofline_grows() -> None:
    peaks = {"tflops": {"float32": 60.0}, "gbytes_per_s": 3000.0}
    few = [roofline.Point("k" * 24, "float32", step, 10.0, 5.0, measured=False) for step in range(1, 9)]
    many = [roofline.Point("k" * 40, "float32", step, 10.0, 5.0, measured=False) for step in range(1, 40)]
    heights = [float(parsed(roofline.roofline(points, peaks, "t")).get("height", "nan")) for points in (few, many)]
    assert heights[1] > roofline.TALL + 200 > heights[0]
    with pytest.raises(labels.NoRoomError, match="too many"):
        roofline.roofline([roofline.Point("k" * 400, "float32", 1, 10.0, 5.0, measured=False)], peaks, "t")


def test_ticks_begin_where_the_axis_does() -> None:
    assert svg.ticks(0.95, low=0.71) == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95])
