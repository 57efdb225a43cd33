"""Tables that are written by hand, beside the stored reports that they quote: README.md and docs/fast-path.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.generate.__main__ import ROOT
from docs.generate.figures import FIGURES

TIMES = {"on the card": "on_card_ms", "host labels": "end_to_end_ms", "one image": "end_to_end_ms"}


def _stored(name: str) -> Any:
    return json.loads((FIGURES / f"h100_{name}.json").read_text(encoding="utf-8"))


def _tables(document: Path, block: str) -> list[list[str]]:
    """Cells of all table rows in a block."""
    (text,) = re.findall(rf"<!-- {block}:begin -->\n(.*?)<!-- {block}:end -->", document.read_text("utf-8"), re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]


@pytest.mark.parametrize(
    ("document", "block", "columns"),
    [
        ("README.md", "measured", ("fp32x", "fp16", "fp32")),
        ("docs/fast-path.md", "fast_path", ("fp16", "fp32x")),
    ],
)
def test_quoted_times_are_those_of_the_stored_reports(document: str, block: str, columns: tuple[str, ...]) -> None:
    checked = 0
    for what, *cells in _tables(ROOT / document, block):
        kind = next((kind for kind in TIMES if kind in what), None)
        if kind is None or what.startswith(columns) or not cells[0].startswith("0."):  # those beside peers: below
            continue
        for precision, cell in zip(columns, cells, strict=False):
            stored = _stored(f"lenet5_{precision}" + "_batch1" * (kind == "one image"))[TIMES[kind]]
            assert cell.split()[0] == f"{stored['p50']:.3f}", (what, precision)
            checked += 1
    assert checked == 3 * len(columns)


def test_quoted_peers_are_those_of_the_stored_run() -> None:
    rows = {(row["engine"], row["precision"]): row for row in _stored("peers_lenet5")["rows"]}
    engines = ("torch-eager", "torch-max-autotune", "torch-reduce-overhead", "jax-jit")
    checked = 0
    for what, ours, *cells in _tables(ROOT / "README.md", "measured"):
        match = re.fullmatch(r"(fp32x|fp16), (on the card|end to end)", what)
        if match is None:
            continue
        measure = TIMES["on the card"] if match[2] == "on the card" else "end_to_end_ms"
        own = rows["ours", match[1]][measure]["p50"]
        assert ours == f"{own:.3f}"
        for engine, cell in zip(engines, cells, strict=True):
            ms = rows[engine, {"fp32x": "fp32"}.get(match[1], match[1])][measure]["p50"]
            assert cell in {f"{ms:.{digits}f} ({ms / own:.1f} ×)" for digits in (2, 3)}, (what, engine)
            checked += 1
    assert checked == 4 * len(engines)
