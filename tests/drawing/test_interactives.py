"""Test the interactives: they read without scripts, and in a browser they respond and compute what NumPy computes."""

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


class Cells(Nesting):
    """Collects the texts of a fragment's lines and cells; its elements must nest."""

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


def drive(first: str, inputs: dict[int, object]) -> str:
    """A script that sets inputs of the section ``first``, by their place, and returns its facts and lit cells."""
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
ASKED = {  # what the page reports: JavaScript expressions, evaluated in this order
    "first": "[...document.querySelectorAll('section')].map((section) => section.outerHTML)",
    "im2col": drive("windows", {3: 300, 4: 13}),
    "eight": drive("windows", {2: 1}),
    "tap": drive("start-address", {0: 24}),
    "typed": drive("split", {0: 1.0009765625, 1: 2}),
    "halves": f"{json.dumps([float(value) for value in VALUES])}.map((value) => String(lenet.half(value)))",
    "products": f"{json.dumps([[float(value) for value in pair] for pair in PAIRS])}.map(([a, b]) => "
    "{ const m = lenet.multiply(a, b, true); return [m.sum, m.exact, m.coarse]; })",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a page with all three reports after it was moved; nothing may have reached the console."""
    folder = tmp_path_factory.mktemp("interactives")
    (folder / "scripts").mkdir()
    for file, text in interactives.script_texts().items():
        (folder / "scripts" / file).write_text(text, encoding="utf-8")
    body = "".join(map(interactives.interactive_html, interactives.INTERACTIVES))
    asked = ", ".join(f"{name}: {expression}" for name, expression in ASKED.items())
    head = f'<!DOCTYPE html><meta charset="utf-8"><title>x</title><style>{interactives.page_style_sheet()}</style>'
    result: dict[str, Any] = evaluate_in_page(head + body, f"{{{asked}}}", folder)
    return result


def test_the_scripts_know_the_kernels_sizes() -> None:
    texts = interactives.script_texts()
    steps = {row.name: row for row in registry.variants("conv")}
    tile = steps["im2col-gemm"].defaults(CONV1)["TILE"]
    gathered = steps["implicit-gemm"].defaults(CONV1)
    assert f"TILE = {tile}, BN = {gathered['BN']};" in texts["windows.js"] and gathered["BK"] == CONV1.reduction_length
    for constant, there in (("WINDOW_ROW_BYTES = 6 * 16", "windows.js"), ("WINDOW_HALF_BYTES = 15 *", "windows.js")):
        assert constant in HEADERS and constant.replace("_BYTES", "") in texts[there]
    assert "ROW_BYTES = 12 * 16" in HEADERS and "PLANE_BYTES = 12 * ROW_BYTES" in HEADERS
    assert "SIDE = 12," in texts["start_address.js"] and "ROW = SIDE * PIXEL" in texts["start_address.js"]


def test_at_first_the_scripts_say_what_the_page_said(found: dict[str, Any]) -> None:
    facts = r"(<ul class=\"facts\".*?</ul>|<tbody.*?</tbody>)"
    for name, section in zip(interactives.INTERACTIVES, found["first"], strict=True):
        (shown,), (written,) = (
            re.findall(facts, text, re.DOTALL) for text in (section, interactives.interactive_html(name))
        )
        assert Cells(shown).texts == Cells(written).texts


def test_sliders_light_what_im2col_reads(found: dict[str, Any]) -> None:
    # Row 12, column 12; term 13 is (2, 3): pixel (14, 15). The legend has a sample of each kind.
    said = found["im2col"]["facts"]
    assert "row 12, column 12" in said[0] and "byte 407 of the image" in said[0]
    assert f"byte {(13 * 576 + 300) * 4:,}" in said[1]
    assert f"pixels[13][{300 % 16}]" in said[2] and f"bank {(13 * 16 + 12) % 32}" in said[2]
    assert (found["im2col"]["here"], found["im2col"]["among"]) == (2, 25)  # 24 others and a sample


def test_windows_take_every_bank_once(found: dict[str, Any]) -> None:
    said = found["eight"]["facts"]
    assert "window 3 of its row: columns 12 to 19" in said[1]
    assert f"byte {14 // 2 * 96 + 3 * 16:,}" in said[1] and "every bank once" in said[2]
    assert found["eight"]["here"] == 9  # eight pixels and a sample


def test_a_tap_is_a_start_address(found: dict[str, Any]) -> None:
    offset, said = 4 * 2 * 192 + 4 * 16, found["tap"]["facts"]
    assert f"= {offset:,} bytes" in said[0] and f"{offset:,} / 16 = {offset // 16}" in said[1]
    # The first pixel of 8 x 8 in the map and in memory, and the tap; the others, and those of two images in memory.
    assert (found["tap"]["here"], found["tap"]["among"]) == (3, 63 + 2 * 64 - 1)


def test_halves_are_rounded_as_numpy_rounds_them(found: dict[str, Any]) -> None:
    with np.errstate(over="ignore"):
        expected = VALUES.astype(np.float16).astype(np.float64)
    halves = np.array([float(text.replace("Infinity", "inf")) for text in found["halves"]])
    assert np.array_equal(halves, expected)


def test_three_products_are_nearly_as_exact_as_float32(found: dict[str, Any]) -> None:
    sums, exact, coarse = np.array(found["products"]).T
    assert np.abs(sums / exact - 1).max() < 2.0**-20 < 2.0**-12 < np.abs(coarse / exact - 1).max()


def test_typed_numbers_change_the_table(found: dict[str, Any]) -> None:
    assert found["typed"]["facts"][0] == "1.00097656" and "none" in found["typed"]["facts"]
