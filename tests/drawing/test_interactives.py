"""Test the interactive drawings: readable without scripts; in a browser they respond, and their numbers are NumPy's."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.drawing import interactives
from app.kernels import registry
from app.kernels.problems import ConvProblem
from tests.support.pages import Nesting, evaluate_in_page

CONV1 = ConvProblem(1, 28, 28, 32, 5)
SHARED = Path(__file__).parents[2] / "app/kernels/include"
HEADERS = "".join((SHARED / f"{name}.cuh").read_text("utf-8") for name in ("conv_pair", "conv_pair_warpgroups"))


class CellTexts(Nesting):
    """Parser that collects the texts of ``li``, ``td`` and ``th`` elements in ``texts``."""

    def __init__(self, html: str) -> None:
        self.texts: list[str] = []
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag in ("li", "td", "th"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if {"li", "td", "th"} & {*self.open}:
            self.texts[-1] += data


def interaction_script(first: str, inputs: dict[int, object]) -> str:
    """Return JavaScript that sets inputs of a section and returns its texts and its number of marked cells.

    first: id of the section. inputs: position of an ``input`` in the section → its new value.
    """
    steps = "".join(
        f"all[{place}].type === 'radio' ? all[{place}].click() : (all[{place}].value = {json.dumps(value)}, "
        f"all[{place}].dispatchEvent(new Event('input')));"
        for place, value in inputs.items()
    )
    return (
        f"(() => {{ const here = document.getElementById('{first}'), all = here.querySelectorAll('input'); {steps}"
        "const lit = (kind) => here.querySelectorAll('svg .' + kind).length;"
        "return {facts: [...here.querySelectorAll('.facts li, td')].map((line) => line.textContent), "
        "here: lit('here'), among: lit('among')}; })()"
    )


RNG = np.random.default_rng(5)
VALUES = np.concatenate(
    [
        RNG.normal(size=2000) * 2.0 ** RNG.integers(-30, 18, 2000),
        np.arange(2048, 2100) + 0.5,  # ties
        (np.arange(40) + 0.5) * 2.0**-24,  # ties among the smallest
        [0.0, -0.0, 65504, 65519.99, 65520, -65520, 2.0**-14, 2.0**-25, np.nextafter(2.0**-25, 1), 1e30],
    ]
).astype(np.float32)
PAIRS = RNG.normal(size=(200, 2)).astype(np.float32)
EXPRESSIONS = {  # name of a result → JavaScript expression; the page evaluates these in order
    "first": "[...document.querySelectorAll('section')].map((section) => section.outerHTML)",
    "im2col": interaction_script("windows", {3: 300, 4: 13}),
    "eight": interaction_script("windows", {2: 1}),
    "tap": interaction_script("start-address", {0: 24}),
    "typed": interaction_script("split", {0: 1.0009765625, 1: 2}),
    "halves": f"{json.dumps([float(value) for value in VALUES])}.map((value) => String(lenet.half(value)))",
    "products": f"{json.dumps([[float(value) for value in pair] for pair in PAIRS])}.map(([a, b]) => "
    "{ const m = lenet.multiply(a, b, true); return [m.sum, m.exact, m.coarse]; })",
}


@pytest.fixture(scope="module")
def page_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return name → value of each of ``EXPRESSIONS``, in a page with all interactive drawings and an empty console."""
    folder = tmp_path_factory.mktemp("interactives")
    (folder / "scripts").mkdir()
    for file, text in interactives.script_texts().items():
        (folder / "scripts" / file).write_text(text, encoding="utf-8")
    body = "".join(map(interactives.interactive_drawing_html, interactives.INTERACTIVES))
    pairs = ", ".join(f"{name}: {expression}" for name, expression in EXPRESSIONS.items())
    head = f'<!DOCTYPE html><meta charset="utf-8"><title>x</title><style>{interactives.page_style_sheet()}</style>'
    result: dict[str, Any] = evaluate_in_page(head + body, f"{{{pairs}}}", folder)
    return result


def test_script_constants_equal_those_of_the_kernels() -> None:
    texts = interactives.script_texts()
    steps = {row.name: row for row in registry.variants("conv")}
    tile = steps["im2col-gemm"].defaults(CONV1)["TILE"]
    gathered = steps["implicit-gemm"].defaults(CONV1)
    assert f"TILE = {tile}, BN = {gathered['BN']};" in texts["windows.js"] and gathered["BK"] == CONV1.reduction_length
    for constant, there in (("WINDOW_ROW_BYTES = 6 * 16", "windows.js"), ("WINDOW_HALF_BYTES = 15 *", "windows.js")):
        assert constant in HEADERS and constant.replace("_BYTES", "") in texts[there]
    assert "ROW_BYTES = 12 * 16" in HEADERS and "PLANE_BYTES = 12 * ROW_BYTES" in HEADERS
    assert "SIDE = 12," in texts["start_address.js"] and "ROW = SIDE * PIXEL" in texts["start_address.js"]


def test_scripts_first_show_the_facts_in_the_static_html(page_results: dict[str, Any]) -> None:
    facts = r"(<ul class=\"facts\".*?</ul>|<tbody.*?</tbody>)"
    for name, section in zip(interactives.INTERACTIVES, page_results["first"], strict=True):
        (shown,), (written,) = (
            re.findall(facts, text, re.DOTALL) for text in (section, interactives.interactive_drawing_html(name))
        )
        assert CellTexts(shown).texts == CellTexts(written).texts


def test_sliders_mark_the_pixel_that_im2col_reads(page_results: dict[str, Any]) -> None:
    # Output pixel 300 is row 12, column 12; term 13 is tap (2, 3): input pixel (14, 15).
    said = page_results["im2col"]["facts"]
    assert "row 12, column 12" in said[0] and "byte 407 of the image" in said[0]
    assert f"byte {(13 * 576 + 300) * 4:,}" in said[1]
    assert f"pixels[13][{300 % 16}]" in said[2] and f"bank {(13 * 16 + 12) % 32}" in said[2]
    marked = page_results["im2col"]["here"], page_results["im2col"]["among"]
    assert marked == (1 + 1, 24 + 1), "and each once more in the legend"


def test_a_window_of_the_fast_path_uses_every_bank_once(page_results: dict[str, Any]) -> None:
    said = page_results["eight"]["facts"]
    assert "window 3 of its row: columns 12 to 19" in said[1]
    assert f"byte {14 // 2 * 96 + 3 * 16:,}" in said[1] and "every bank once" in said[2]
    assert page_results["eight"]["here"] == 9  # eight pixels, and one in the legend


def test_a_tap_moves_the_start_address(page_results: dict[str, Any]) -> None:
    offset, said = 4 * 2 * 192 + 4 * 16, page_results["tap"]["facts"]
    assert f"= {offset:,} bytes" in said[0] and f"{offset:,} / 16 = {offset // 16}" in said[1]
    # Marked: the first of 8 x 8 pixels in map and memory, and the tap; then the other pixels, in memory of two images.
    assert (page_results["tap"]["here"], page_results["tap"]["among"]) == (3, 63 + 2 * 64 - 1)


def test_float16_values_equal_those_of_numpy(page_results: dict[str, Any]) -> None:
    with np.errstate(over="ignore"):
        expected = VALUES.astype(np.float16).astype(np.float64)
    halves = np.array([float(text.replace("Infinity", "inf")) for text in page_results["halves"]])
    assert np.array_equal(halves, expected)


def test_three_products_are_nearly_as_exact_as_float32(page_results: dict[str, Any]) -> None:
    sums, exact, coarse = np.array(page_results["products"]).T
    assert np.abs(sums / exact - 1).max() < 2.0**-20 < 2.0**-12 < np.abs(coarse / exact - 1).max()


def test_typed_numbers_appear_in_the_table(page_results: dict[str, Any]) -> None:
    assert page_results["typed"]["facts"][0] == "1.00097656" and "none" in page_results["typed"]["facts"]
