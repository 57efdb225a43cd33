"""Test the drawings of steps: legends, arrows, and sizes that agree with the launch of the kernel."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from app.drawing.svg import Drawing
from app.kernels.conv.rows.toom_cook import toom_cook_matrices
from app.ladder import tiles
from app.ladder.card import Card, Layer
from app.ladder.lessons import Step, all_steps
from app.ladder.matrix_tiles import draw_kernel_passes
from app.ladder.pixel_tiles import draw_register_patch
from tests.ladder.conftest import BY_NAME, STEPS

# CSS classes of shapes that the legend leaves out, because words beside the shapes explain them.
WITHOUT_LEGEND = {"plain", "shared", "taps", "cells", "arrow", "tip"}


def page_drawing(card: Card, name: str) -> tuple[Drawing, Layer]:
    """Return the drawing on a step's page, and the layer that it shows: lenet5's conv2, or fc1."""
    layers = card.layers(BY_NAME[name])
    layer = next((one for one in layers if one.name == "conv2"), layers[0])
    return tiles.draw_step(BY_NAME[name], layer.names), layer


def rectangles(drawing: Drawing, kind: str) -> list[dict[str, float]]:
    """Return x, y, width and height of each rectangle with the CSS class ``kind``."""
    found = ElementTree.fromstring(drawing.svg()).iter("rect")
    sizes = ("x", "y", "width", "height")
    return [{name: float(one.attrib[name]) for name in sizes} for one in found if one.attrib["class"] == kind]


@STEPS
def test_the_legend_repeats_the_title_of_each_marked_shape(step: Step, card: Card) -> None:
    for layer in card.layers(step):
        drawing = tiles.draw_step(step, layer.names)
        titles: dict[str, list[str]] = {}
        for one in ElementTree.fromstring(drawing.svg()).iter("rect"):
            title = one.find("title")
            if title is not None and title.text not in titles.setdefault(one.attrib["class"], []):
                titles[one.attrib["class"]].append(str(title.text))
        kinds = {one.attrib["class"] for one in ElementTree.fromstring(drawing.svg()).iter() if "class" in one.attrib}
        assert titles.items() <= drawing.keys.items()
        assert {kind for kind in kinds - {"", "head", "quiet", "small"} if kind not in WITHOUT_LEGEND} <= {
            *drawing.keys
        }


def test_toom_cook_drawing_has_an_arrow_for_each_nonzero_factor(card: Card) -> None:
    drawing, layer = page_drawing(card, "conv-toom-cook")
    taps = int(layer.names["K"])
    to_values, _, to_outputs = toom_cook_matrices(taps)
    arrows = [tuple(map(float, one)) for one in re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawing.svg())]
    into = {"values": 146, "sums": 296, "outputs": 440}  # x coordinate at which arrows end
    for x, factors in ((into["values"], to_values), (into["outputs"], to_outputs)):
        ends = sorted({y for *_, to, y in arrows if to == x})
        starts = sorted({y for _, y, to, _ in arrows if to == x})
        assert len(ends) == len(factors) and len(starts) == taps + 1
        found = {(ends.index(to_y), starts.index(y)) for _, y, to, to_y in arrows if to == x}
        assert found == {(row, at) for row, line in enumerate(factors) for at, one in enumerate(line) if one}
    assert sum(to == into["sums"] for *_, to, _ in arrows) == taps + 1


def test_metadata_bits_are_the_positions_of_the_drawn_weights(card: Card) -> None:
    drawing, layer = page_drawing(card, "conv-warpgroup-sparse")
    weights, zeros = (rectangles(drawing, kind) for kind in ("own", "plain"))
    edge = max(one["x"] for one in zeros) + zeros[0]["width"]  # the kept weights are drawn again further right
    found, kept = [], set()
    for y in sorted({one["y"] for one in zeros}):
        drawn_weights = [one["x"] for one in weights if one["y"] == y and one["x"] <= edge]
        columns = sorted([*drawn_weights, *(one["x"] for one in zeros if one["y"] == y)])
        assert len(columns) == 8 and len(drawn_weights) == 4
        assert sum(one["y"] == y for one in weights) == 2 * len(drawn_weights)
        found.append([columns.index(x) % 4 for x in sorted(drawn_weights)])
        kept |= {tuple(found[-1][:2]), tuple(found[-1][2:])}
    bits = re.findall(r">([01]{2})<", drawing.svg())
    assert [int(one, 2) for one in bits] == [place for places in found for place in places]
    assert kept == {*combinations(range(4), 2)}, "each of the six pairs is shown"
    pixels = 8 * int(layer.names["ROWS"])
    assert (
        f"× {pixels} pixels, in the {pixels // 2} clocks" in drawing.svg() and f"{64 * pixels:,} bytes" in drawing.svg()
    )


@pytest.mark.parametrize("step", [step for step in all_steps() if step.lesson.drawing["kind"] == "product"])
def test_marked_outputs_of_a_thread_are_those_that_its_kernel_computes(step: Step, card: Card) -> None:
    """Check number and position of the marked outputs: inside the block's tile, in runs as in the kernel."""
    drawing, layer = page_drawing(card, step.page_name)
    own, (tile,) = rectangles(drawing, "own"), rectangles(drawing, "plain")
    given = {
        name: tiles.evaluate_formula(text, layer.names) for name, text in step.lesson.drawing.items() if name in SIZES
    }
    cell = tile["width"] / given["columns"]
    area = sum(one["width"] * one["height"] for one in own) / cell**2
    assert area == pytest.approx(given["tall"] * given["wide"], rel=1e-4)
    for one in own:
        assert tile["x"] <= one["x"] and one["x"] + one["width"] <= tile["x"] + tile["width"] + 0.01
        assert tile["y"] <= one["y"] and one["y"] + one["height"] <= tile["y"] + tile["height"] + 0.01
    (along, _), (_, down) = re.findall(r'd="M[\d.]+ [\d.]+L([\d.]+) ([\d.]+)"', drawing.svg())
    assert (float(along), float(down)) == pytest.approx((own[0]["x"], own[0]["y"]), rel=1e-3), "arrows end at them"
    runs = {"register-column": (8, 1), "register-square": (64, 16), "wide-loads": (4, 1)}  # convolution, product
    if step.row.name in runs:
        assert len(own) == (
            8 if step.page_name == "gemm-register-column" else runs[step.row.name][step.ladder_name[0] == "m"]
        )


SIZES = ("columns", "tall", "wide")


def test_a_patch_reads_the_windows_of_its_pixels() -> None:
    assert "input under the patch, 6 × 12, shared memory" in draw_register_patch(8, 2, 8, 5, 1, 128).svg()


def test_each_pass_names_the_matrix_that_it_writes() -> None:
    names = re.findall(r">([^<>]+)</text>", draw_kernel_passes(25, 576, 784).svg())
    assert {"im2col", "25 × 576 values", "cuBLAS", "product", "layout"} <= {*names}


def test_a_warp_has_32_threads_for_every_tile_size(card: Card) -> None:
    step, layer = BY_NAME["conv-shared-tile"], card.layers(BY_NAME["conv-shared-tile"])[0]
    for tile in (8, 16, 24, 32):
        drawing = tiles.draw_step(step, {**layer.names, "TILE": tile})
        (cell,) = {one["height"] for one in rectangles(drawing, "warp")}
        assert sum(one["width"] for one in rectangles(drawing, "warp")) / cell == pytest.approx(32, rel=1e-4)


def test_ring_drawing_of_float16_mentions_no_conversion(card: Card) -> None:
    drawing, layer = page_drawing(card, "gemm-warpgroup")
    assert layer.names["BYTES_IN"] == 2 and "convert" not in drawing.svg()
