"""Test that handwritten prose, quoted tables and pictures agree with the stored figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.network.definitions import NETWORKS
from docs.generate import pictures
from docs.generate.__main__ import KERNELS, README, ROOT, SYSTEMS, Document
from docs.generate.figures import FIGURES, Figures
from tests.docs.test_docs import BLOCK

TIMES = {"on the card": "on_card_ms", "host labels": "end_to_end_ms", "one image": "end_to_end_ms"}
COMPARES = r"\b(faster|slower|fastest|slowest|longer|shorter|best|better|less|more|most|gain|winner|every network)\b"
# Sentences that compare on a network by its name: all of them tell what the old reports told, or define.
OF_REPORTS = (
    "A gain in the reports of `lenet5` and `fa19`.",
    "From `k7`, its winner.",
    "From `minidnn86` (its best in fp32) and `fa19` (its best first layer).",
    "From `fa19` (its best, with swept tiles) and `k7`.",
    "From `mlp`, where such products took most of the time, and `minidnn86`.",
)


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_prose_holds_no_measured_figures(document: Document) -> None:
    """A number with a unit of time or rate stands in a block or nowhere."""
    assert not re.findall(r"\d (?:ms|µs|TFLOP/s|GB/s)\b", BLOCK.sub("", document.read()))


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_prose_compares_no_measurements(document: Document) -> None:
    """Which kernel is faster on which network stands in a block, which the figures write, or nowhere."""
    prose = re.sub(r"```[^`]*```|^[|#].*$", "", BLOCK.sub("", document.read()), flags=re.M)
    sentences = [" ".join(text.split()) for text in re.split(r"(?<=[.:;])\s+|\n\n", prose)]
    named = [text for text in sentences if re.search("`(?:" + "|".join(NETWORKS) + ")`", text)]
    compared = {text for text in named if re.search(COMPARES, text)}
    assert compared == (set(OF_REPORTS) if document is KERNELS else set())


def test_comments_of_kernels_compare_no_measurements() -> None:
    """Nor which network gains by a kernel: only that k7 chose step 5, as below."""
    found = set()
    for path in (ROOT / "app" / "kernels").rglob("*.cu*"):
        comments = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()[:2] == "//"]
        text = " ".join(line.lstrip("/ ") for line in comments)
        named = (part for part in re.split(r"(?<=[.:;])\s+", text) if re.search(rf"\b({'|'.join(NETWORKS)})\b", part))
        found |= {part for part in named if re.search(COMPARES, part)}
    assert found == {"k7 (its winner:"}


def test_what_prose_says_of_the_reports_is_theirs() -> None:
    """``OF_REPORTS``, against the reports' own figures."""
    old = Figures(FIGURES).old
    fa19, minidnn86 = old["fa19"], old["minidnn86"]
    tiles = fa19.version("one image per grid z", 10_000), fa19.version("shared-memory convolution", 10_000)
    assert tiles[0].sum_ms > tiles[1].sum_ms
    direct, shared = old["lenet5"].version("before shared memory", 10_000), "shared-memory convolution"
    assert direct.sum_ms > old["lenet5"].version(shared, 10_000).sum_ms
    assert min(old["k7"].versions, key=lambda version: version.sum_ms).variant == "shared-constant"
    in_fp32 = [version for version in minidnn86.versions if version.images == 5000 and version.dtype == "float32"]
    assert min(in_fp32, key=lambda version: version.sum_ms).variant == "unrolled"
    assert min(fa19.versions, key=lambda version: version.ops[0]).variant == "unrolled"
    assert min(fa19.versions, key=lambda version: version.sum_ms).version == "+ swept tiles 16 / 24"


def test_pictures_are_of_the_tables_run() -> None:
    """Each carries the hash of the JSON file that it was drawn from; no other picture is there or shown."""
    assert not pictures.stale(FIGURES), "run: python -m docs.generate --draw"
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    texts = "".join(path.read_text(encoding="utf-8") for path in [*KERNELS.path.parent.glob("*.md"), README.path])
    assert set(re.findall(r"images/([\w.-]+png)", texts)) == set(pictures.PICTURES)


def test_a_picture_of_another_run_is_found(tmp_path: Path, figures_folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the plot extra) is not installed")
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
