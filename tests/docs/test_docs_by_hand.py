"""Test that handwritten prose, quoted tables and pictures agree with the stored figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.generate import pictures
from docs.generate.__main__ import KERNELS, ROOT, SYSTEMS, Document
from docs.generate.figures import FIGURES
from tests.docs.test_docs import BLOCK

TIMES = {"on the card": "on_card_ms", "host labels": "end_to_end_ms", "one image": "end_to_end_ms"}


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_prose_holds_no_measured_figures(document: Document) -> None:
    """A number with a unit of time or rate stands in a block or nowhere."""
    assert not re.findall(r"\d (?:ms|µs|TFLOP/s|GB/s)\b", BLOCK.sub("", document.read()))


def test_pictures_are_of_the_tables_run() -> None:
    """Each carries the hash of the JSON file that it was drawn from; no other picture is there or shown."""
    assert not pictures.stale(FIGURES), "run: python -m docs.generate --draw"
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    texts = "".join(
        path.read_text(encoding="utf-8") for path in [*KERNELS.path.parent.glob("*.md"), ROOT / "README.md"]
    )
    assert set(re.findall(r"images/([\w.-]+svg)", texts)) == set(pictures.PICTURES)


def test_a_picture_of_another_run_is_found(tmp_path: Path, figures_folder: Path) -> None:
    assert pictures.stale(figures_folder, tmp_path) == list(pictures.PICTURES)  # none is there
    drawn = pictures.draw(figures_folder, tmp_path)
    assert [path.name for path in drawn] == list(pictures.PICTURES) and not pictures.stale(figures_folder, tmp_path)
    assert pictures.stale(FIGURES, tmp_path) == list(pictures.PICTURES)
    drawn[0].write_bytes(drawn[0].read_bytes().replace(b"sha256:", b"sha257:"))
    drawn[1].write_bytes(b"no picture")
    assert pictures.stale(figures_folder, tmp_path) == list(pictures.PICTURES)[:2]


def _stored(name: str) -> Any:
    return json.loads((FIGURES / f"h100_{name}.json").read_text(encoding="utf-8"))


def _tables(document: Path, block: str) -> list[list[str]]:
    """Cells of all table rows in a block."""
    (text,) = re.findall(rf"<!-- {block}:begin -->\n(.*?)<!-- {block}:end -->", document.read_text("utf-8"), re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]


@pytest.mark.parametrize(
    ("document", "block", "columns"),
    [
        ("README.md", "measured", ("fp32x", "fp16", "int8", "fp32")),
        ("docs/fast-path.md", "fast_path", ("fp16", "fp32x", "int8")),
    ],
)
def test_quoted_times_are_those_of_the_stored_reports(document: str, block: str, columns: tuple[str, ...]) -> None:
    """Of one image in int8 there is no report, and no time."""
    checked = 0
    for what, *cells in _tables(ROOT / document, block):
        kind = next((kind for kind in TIMES if kind in what), None)
        if kind is None or what.startswith(columns) or not cells[0].startswith("0."):
            continue
        for precision, cell in zip(columns, cells, strict=False):
            if (precision, kind) == ("int8", "one image"):
                assert not cell
                continue
            stored = _stored(f"lenet5_{precision}" + "_batch1" * (kind == "one image"))[TIMES[kind]]
            assert cell.split()[0] == f"{stored['p50']:.3f}", (what, precision)
            checked += 1
    assert checked == 3 * len(columns) - 1
