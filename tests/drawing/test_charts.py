"""Test the SVG charts: they are well-formed, self-contained as files, show every value, and no labels overlap."""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.drawing import journey, labels, lines, matrix, roofline, svg, waterfall
from app.kernels.registry import variants

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"
CLASSES = re.compile(r"\.chart [a-z]*\.?([a-z0-9]+)")
NETWORKS = ("lenet5", "fa19", "k7", "minidnn86")


def load_benchmark(name: str) -> Any:
    """Return the document in docs/benchmarks/NAME.json."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))


def parse_chart(chart: str) -> ElementTree.Element:
    """Return the root element of a chart, which must have a title, a description, and only known CSS classes."""
    root = ElementTree.fromstring(chart)
    named = {element.get("id"): element.text for element in root[:2]}
    assert [element.tag for element in root[:2]] == ["title", "desc"]
    assert root.get("role") == "img" and root.get("aria-labelledby", "").split() == [*named]
    assert all(named.values())
    used = {kind for element in root.iter() for kind in (element.get("class") or "").split()}
    assert used <= {"chart", *CLASSES.findall(svg.style_sheet())}
    return root


def chart_texts(root: ElementTree.Element) -> list[str]:
    """Return the texts in a chart."""
    return ["".join(element.itertext()) for element in root.iter("text")]


@pytest.mark.parametrize("network", NETWORKS)
def test_ladder_chart_has_every_step_and_marks_slower_ones(network: str) -> None:
    document = load_benchmark(f"h100_bench_{network}")
    predicted = {("direct", "float32"): 20.0}
    since = {row.name: row.since for row in variants("conv")}
    bars = journey.bars_from_bench(
        document, predicted=predicted, links={("direct", "float32"): "direct.html"}, since=since
    )
    names = [row["name"] for row in document["totals"] if row["kind"] != "debug" and row["sum_ms"]]
    assert [bar.name for bar in bars] == names
    root = parse_chart(journey.draw_ladder_chart(bars, f"<{network}>"))
    said = chart_texts(root)
    assert {bar.label for bar in bars} <= {*said}
    slower = {bar.label for bar in bars if bar.is_slower}
    times = {bar.name: bar.ms for bar in bars if bar.dtype == "float32"}
    in_fp32 = {
        bar.label
        for bar in bars
        if bar.dtype == "float32" and times.get(since.get(bar.name) or "", 1e9) < 0.97 * bar.ms
    }
    assert in_fp32 and in_fp32 == {bar.label for bar in bars if bar.is_slower and bar.dtype == "float32"}
    (half2,) = (bar for bar in bars if bar.name == "half2")
    assert half2.ratio == pytest.approx(times["unrolled"] / half2.ms)  # unrolled was not measured in fp16
    assert sum(text.endswith("slower") for text in said) == len(slower)
    assert "predicted 20.0 ms" in root[1].text  # type: ignore[operator]
    assert [link.get("href") for link in root.iter("a")] == ["direct.html"]


def test_bar_lengths_are_proportional_to_logarithms_of_times() -> None:
    one, ten, hundred = (journey.Bar(str(ms), "float32", ms, step=1) for ms in (1.0, 10.0, 100.0))
    for layout in (journey.WIDE, journey.NARROW):
        root = parse_chart(journey.draw_ladder_chart([one, ten, hundred], "three", layout=layout))
        rows = [rect for rect in root.iter("rect") if float(rect.get("x", 0)) == layout.left]
        widths = [float(rect.get("width", 0)) for rect in rows]
        assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], rel=0.01)
    with pytest.raises(ValueError, match="needs a step"):
        journey.draw_ladder_chart([], "none")


@pytest.mark.parametrize("network", NETWORKS)
def test_the_roofline_has_a_panel_for_each_format_and_a_label_for_each_point(network: str) -> None:
    document = load_benchmark(f"h100_bench_{network}")
    for item in ("conv1", "conv2"):
        points = roofline.roofline_points(document, item)
        root = parse_chart(roofline.draw_roofline(points, document["peaks"], item))
        said = chart_texts(root)
        for name in {point.label for point in points}:
            assert said.count(name) == sum(point.label == name for point in points)
        panel = min(float(text.get("x", 0)) for text in root.iter("text"))
        lines = [path.get("d", "") for path in root.iter("path") if "curve" in (path.get("class") or "")]
        assert all(float(re.findall(r"[\d.-]+", line)[0]) > panel for line in lines)  # roofs begin inside their panels
        width, height = (float(root.get(side, 0)) for side in ("width", "height"))
        for mark in root.iter("circle"):
            assert 0 <= float(mark.get("cx", -1)) <= width and 0 <= float(mark.get("cy", -1)) <= height
        heads = [text for text in said if text.endswith("TFLOP/s ↑")]
        assert len(heads) == len({point.dtype for point in points})


def test_counted_bytes_change_intensity_but_not_rate_of_a_roofline_point() -> None:
    document = load_benchmark("h100_bench_lenet5")
    counted = {point.name: point for point in roofline.roofline_points(document, "conv2") if point.dtype == "float32"}
    row = next(r for t in document["tables"] if t["item"] == "conv2" for r in t["rows"] if r["name"] == "direct")
    flops = row["rates"]["tflops"] * 1e12 * row["ms"] / 1e3
    (moved,) = (
        point
        for point in roofline.roofline_points(document, "conv2", {("direct", "float32"): flops / 7})
        if (point.name, point.dtype) == ("direct", "float32")
    )
    assert moved.measured and not counted["direct"].measured
    assert moved.intensity == pytest.approx(7) and moved.tflops == counted["direct"].tflops
    assert "counted by the hardware" in roofline.draw_roofline([moved], document["peaks"], "one")


def test_labels_cover_no_point_and_no_other_label() -> None:
    panel = labels.Box(10, 20, 300, 200)
    points = [((100.0 + 2 * (i % 4), 60.0 + i), 70.0) for i in range(14)]
    boxes = labels.place_labels(points, panel)
    dots = [labels.Box(x - 4, y - 4, 8, 8) for (x, y), _ in points]
    for index, box in enumerate(boxes):
        assert panel.contains_box(box) and not any(box.overlaps_box(other) for other in (*boxes[:index], *dots))
    with pytest.raises(ValueError, match="no room"):
        labels.place_labels([((15.0, 25.0), 400.0)], panel)


@pytest.mark.parametrize("precision", ["fp16", "fp32x"])
def test_waterfall_stages_begin_with_tensor_core_time_and_add_up(precision: str) -> None:
    report = load_benchmark(f"h100_lenet5_{precision}")
    found = waterfall.stages_from_report(report)
    assert [stage.ms for stage in found] == sorted(stage.ms for stage in found)
    assert found[0].ms == pytest.approx({"fp16": 0.0471, "fp32x": 0.0777}[precision], rel=0.01)
    said = chart_texts(parse_chart(waterfall.draw_waterfall(found, "budget", report["raw_copy_ms"]["p50"])))
    assert any("the bus alone" in text for text in said)
    assert f"+{svg.format_number(found[2].ms - found[1].ms)} → {svg.format_number(found[2].ms)} ms" in said


@pytest.mark.parametrize(
    ("kernel", "clocks"),
    [
        ("wgmma", 432 + 1600),
        ("wgmma-split", 2 * 432 + 3 * 1600),
        ("wgmma-int8", 432 + 800),
        ("wgmma-sparse", 432 + 800),
    ],
)
def test_the_budget_counts_the_products_of_each_kernel(kernel: str, clocks: int) -> None:
    report: Any = load_benchmark("h100_lenet5_fp16")
    report = {**report, "layers": [{**report["layers"][0], "kernel": kernel}]}
    assert waterfall.stages_from_report(report)[0].what.startswith(f"{clocks:,} clocks")


def test_report_on_other_kernels_than_the_fast_path_has_no_waterfall() -> None:
    with pytest.raises(ValueError, match="fast path"):
        waterfall.stages_from_report(load_benchmark("h100_lenet5_fp32"))


def test_waterfall_uses_the_clock_rate_of_the_report() -> None:
    report: Mapping[str, Any] = load_benchmark("h100_lenet5_fp16")
    slower = {**report, "power": {"sm_clock_mhz": {"min": 990, "median": 990, "max": 990}}}
    assert waterfall.stages_from_report(slower)[0].ms == pytest.approx(2 * waterfall.stages_from_report(report)[0].ms)


@pytest.mark.parametrize(
    ("value", "said"), [(635.6, "636"), (24.736, "24.7"), (0.4032, "0.403"), (1234.5, "1,234"), (0, "0")]
)
def test_numbers_have_at_least_three_significant_digits(value: float, said: str) -> None:
    assert svg.format_number(value) == said


def test_ticks_are_round_and_cover_the_axis() -> None:
    assert svg.linear_ticks(0.22) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert svg.linear_ticks(0.95, low=0.71) == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95])
    assert svg.powers_of_ten(0.1, 99) == pytest.approx([0.1, 1, 10])
    assert svg.log_ticks(0.1, 99) == svg.powers_of_ten(0.1, 99)
    assert svg.log_ticks(1.5, 60) == pytest.approx([2, 5, 10, 20, 50]) and svg.log_ticks(3, 9) == pytest.approx([5])
    assert [svg.tick_text(tick) for tick in (0.01, 1, 1000)] == ["0.01", "1", "1,000"]


def test_style_sheet_has_light_and_dark_colours_and_prints_light_ones() -> None:
    light, dark, paper = re.split(r"@media ", svg.style_sheet())
    assert dark.startswith("screen and (prefers-color-scheme: dark) {") and paper.startswith("print {")
    colours = [re.findall(r"--chart-\w+(?=:)", sheet) for sheet in (light, dark, paper)]
    assert len(colours[0]) == 12 and colours[0] == colours[1] and {*colours[2]} <= {*colours[0]}


SVG = "{http://www.w3.org/2000/svg}"
HEAT = matrix.draw_heat_map(
    "times", "rows", "columns", {(8, 2): 1.0, (8, 1): 3.0, (16, 1): 5.0, (16, 2): 9.0, (16, 4): 2.0}
)


def test_a_saved_chart_is_self_contained_and_stores_its_source(tmp_path: Path) -> None:
    path = svg.save_chart(HEAT, tmp_path / "heat.svg", "bench.json sha256:<0>")
    root = ElementTree.parse(path).getroot()
    style = root.findtext(f"{SVG}style") or ""
    assert root.tag == f"{SVG}svg" and "var(" not in style and "@media" not in style
    assert style.lstrip().startswith("svg.chart {\n  display: block")  # the rule of the background and the font
    used = {kind for element in root.iter() for kind in (element.get("class") or "").split()}
    assert used and all(re.search(rf"\.{kind}\b", style) for kind in used)
    assert svg.read_chart_source(path) == "bench.json sha256:<0>"
    assert (
        svg.read_chart_source(svg.save_chart(HEAT, path)) is None
        and svg.read_chart_source(tmp_path / "none.svg") is None
    )


def test_heat_map_shows_every_time_and_frames_the_shortest() -> None:
    root = parse_chart(HEAT)
    cells = {rect.findtext("title"): rect for rect in root.iter("rect")}
    times = {(8, 1): "3.00", (8, 2): "1.00", (16, 1): "5.00", (16, 2): "9.00", (16, 4): "2.00"}
    assert [*cells] == [f"rows {row}, columns {column}: {ms} ms" for (row, column), ms in times.items()]
    assert {*times.values(), "8", "16", "1", "2", "4", "rows", "columns"} <= {*chart_texts(root)}
    opacities = [float(cell.get("fill-opacity", "nan")) for cell in cells.values()]
    assert opacities == pytest.approx([matrix.FULL * (ms - 1) / 8 for ms in (3, 1, 5, 9, 2)], abs=1e-3)
    (frame,) = (path.get("d", "") for path in root.iter("path"))
    least = cells["rows 8, columns 2: 1.00 ms"]
    assert frame.startswith(f"M{least.get('x')} {least.get('y')}h")


@pytest.mark.parametrize("rows", [(0,), (8, 16)])
def test_heat_map_of_equal_times_has_no_colour(rows: tuple[int, ...]) -> None:
    chart = parse_chart(matrix.draw_heat_map("one", "", "TILE", {(row, 8): 1.0 for row in rows}))
    assert {cell.get("fill-opacity") for cell in chart.iter("rect")} == {"0.000"}


@pytest.mark.parametrize("logarithmic", [True, False])
def test_names_of_40_lines_do_not_overlap(logarithmic: bool) -> None:
    names = [f"line {number}" for number in range(40)]
    drawn = [lines.Line(name, "c1", [(1, 5.0), (10, 2.0), (100, 1 + at / 100)]) for at, name in enumerate(names)]
    root = parse_chart(
        lines.draw_line_chart("forty", "images", [lines.Panel("ms", drawn)], logarithmic=logarithmic, mark=(10, "here"))
    )
    found = {"".join(text.itertext()): float(text.get("y", "nan")) for text in root.iter("text")}
    heights = sorted(found[name] for name in names)
    assert all(below - above >= labels.HEIGHT - 0.1 for above, below in pairwise(heights))
    assert heights == [found[name] for name in reversed(names)]  # the greatest on top
    assert len([*root.iter("circle")]) == 3 * len(names) and {"here", "images →", "ms ↑"} <= found.keys()


def test_a_line_with_one_point_is_drawn_as_a_dot() -> None:
    root = parse_chart(
        lines.draw_line_chart("one", "epoch", [lines.Panel("loss", [lines.Line("training", "c2", [(1, 0.5)])])])
    )
    assert [dot.findtext("title") for dot in root.iter("circle")] == ["training, 1: 0.500"]


def test_label_positions_are_spread_within_their_range() -> None:
    high = labels.HEIGHT
    assert labels.spread_label_positions([10, 11, 90], 0, 100) == [10, 10 + high, 90]
    assert labels.spread_label_positions([99, 100, 100], 0, 100) == [100 - 2 * high, 100 - high, 100]
    assert labels.spread_label_positions([-5], 0, 100) == [0] and labels.spread_label_positions([], 0, 100) == []


def test_a_crowded_roofline_panel_grows_until_its_labels_fit() -> None:
    peaks = {"tflops": {"float32": 60.0}, "gbytes_per_s": 3000.0}
    few = [roofline.Point("k" * 24, "float32", step, 10.0, 5.0, measured=False) for step in range(1, 9)]
    many = [roofline.Point("k" * 40, "float32", step, 10.0, 5.0, measured=False) for step in range(1, 40)]
    heights = [
        float(parse_chart(roofline.draw_roofline(points, peaks, "t")).get("height", "nan")) for points in (few, many)
    ]
    assert heights[1] > roofline.TALL + 200 > heights[0]
    with pytest.raises(labels.NoRoomError, match="too many"):
        roofline.draw_roofline([roofline.Point("k" * 400, "float32", 1, 10.0, 5.0, measured=False)], peaks, "t")
