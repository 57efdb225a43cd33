"""Test the generated blocks, pictures and quoted times of the documents, and the errors of the generator."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.commands.parsers import load_parser
from app.kernels.registry import variants
from app.ladder.lessons import LADDERS
from app.network.definitions import NETWORKS
from docs.generate import __main__, pictures
from docs.generate.__main__ import BENCHMARKS, DOCUMENTS, KERNELS, ROOT, SYSTEMS, Document
from docs.generate.figures import BENCH, COMPARED, FIGURES, FILES, PEERS, PROFILE, RESOURCES, Figures, command_for_file
from docs.generate.steps import step_speedup_text
from docs.generate.tables import bench_command
from docs.generate.targets import FIRST_LAYER
from tests.support.schemas import mistakes
from tests.support.shell import user_error

TEXT = KERNELS.read()
EVERY_BLOCK = [(document, name) for document in DOCUMENTS for name in document.blocks]
BLOCK = re.compile(r"<!-- \[\[\[cog (\w+)\(\) \]\]\] -->\n(.*?)<!-- \[\[\[end\]\]\] -->", re.DOTALL)


def row_cells(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def table_rows(made: str) -> set[tuple[str, ...]]:
    """Return the rows of all tables in a text, as tuples of cells."""
    return {tuple(row_cells(line)) for line in made.splitlines() if line.startswith("|")}


# --- the committed document -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path.name)
def test_document_equals_its_generated_text(document: Document) -> None:
    assert document.rewrite_blocks(document.read(), Figures()) == (document.read(), []), "run: python -m docs.generate"


@pytest.mark.parametrize(
    ("name", "change", "block"),
    [
        (BENCH["fa19"], lambda found: found["totals"][3].update(sum_ms=1.5), "ladder_fa19"),
        (BENCH["k7"], lambda found: found["batches"][0]["totals"][3].update(sum_ms=1.5), "batches_k7"),
        (PROFILE, lambda found: found["api"][0].update(max_us=1.5), "profile"),
        (RESOURCES, lambda found: found["resources"][0].update(registers=99), "resources"),
    ],
)
def test_a_changed_figure_changes_its_block(name: str, change: Any, block: str) -> None:
    changed = Figures()
    change(changed[name])
    found = {match[1]: match[2] for match in BLOCK.finditer(TEXT)}
    assert found[block] != KERNELS.render_block(block, changed)


# --- the generator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "name"), EVERY_BLOCK)
def test_every_block_can_be_generated(document: Document, name: str, figures: Figures) -> None:
    made = document.render_block(name, figures)
    assert made.endswith("\n") and made.strip()
    assert "None" not in made and "<!--" not in made
    for table in re.findall(r"(?:^\|.*\n)+", made, re.M):
        columns = {re.sub(r"`[^`]*`", "", line).count("|") for line in table.splitlines()}
        assert len(columns) == 1, table


def test_rewriting_changes_blocks_but_not_prose(figures: Figures) -> None:
    once, missing = KERNELS.rewrite_blocks(TEXT, figures)
    assert not missing
    assert all(match[2] == KERNELS.render_block(match[1], figures) for match in BLOCK.finditer(once))
    assert BLOCK.sub("", once) == BLOCK.sub("", TEXT)


def test_speedups_compare_with_the_continued_step(figures: Figures) -> None:
    conv, gemm = (
        {
            row.name: " ".join(step_speedup_text(operation, row.name, figures).split())
            for row in variants(operation)
            if row.taught
        }
        for operation in LADDERS
    )
    # 76 / 72 and 12.5 / 9.5:
    assert "conv1 and conv2 together in 72.00 ms for `lenet5` (1.06 times as fast as `direct`)" in conv["constant"]
    assert "computes conv2 in 9.5000 ms for `lenet5` (1.32 times as fast as `tensor-core`)" in conv["warpgroup"]
    assert "times as fast as `image-loop`)" in conv["direct"] and "as fast as" not in conv["image-loop"]
    assert re.search(r"In fp16,.* as fast as `unrolled` in fp32\)", conv["half2"])
    assert " as fast as `async-copies`)" in conv["register-patch"]
    assert " as fast as `register-column`)" in gemm["split-k"]
    for block, gains in (("convolutions", conv), ("products", gemm)):
        made = " ".join(KERNELS.render_block(block, figures).split())
        assert all(told in made for told in gains.values())


@pytest.mark.parametrize(
    ("document", "block", "row"),
    [
        (KERNELS, "ladder_fa19", "3 shared-tile|fp32|37.00|37.00|74.00|1.99|1.9% mem|5.0% ari|1.08|1.03"),  # 38 / 37
        (KERNELS, "targets", "`lenet5`|fp32|19 register-patch|≤ 2|42.00|**no**|1.2566|2.07|60.00"),
        (KERNELS, "targets", "`lenet5`|fp32|shared-tile|10.00|10.40|1.040|**no**"),
    ],
)
def test_rows_generated_from_invented_figures(document: Document, block: str, row: str, figures: Figures) -> None:
    assert tuple(row.split("|")) in table_rows(document.render_block(block, figures))


def test_blocks_give_reasons_for_missing_times_and_limits(figures: Figures) -> None:
    assert "99 lost in fp32 on conv2: does not fit." in KERNELS.render_block("ladder_fa19", figures)
    assert f"at most {FIRST_LAYER} ×" in KERNELS.render_block("targets", figures)


def test_a_missing_counter_is_shown_as_a_dash(figures: Figures) -> None:
    made = KERNELS.render_block("profile", figures)
    assert any(row[3] == "–" for row in table_rows(made) if len(row) > 10) and made.endswith("\n\nNo more counters.\n")


def test_bench_command_is_valid(figures: Figures) -> None:
    for bench in figures.benches.values():
        options = load_parser("bench").parse_args(bench_command(bench).split()[3:])
        assert (options.network, options.batches) == (bench.network, "100,1000,5000,10000")


@pytest.mark.parametrize("name", FILES)
def test_command_for_file_is_valid(name: str) -> None:
    _, _, command, *arguments = command_for_file(name).split()
    options = load_parser(command).parse_args(arguments)
    assert options.json == f"docs/benchmarks/{name}"
    for files in (BENCH, PEERS):
        for network in (network for network, file in files.items() if file == name):
            assert (options.network, options.peers) == (COMPARED[network], files is PEERS)


# --- whole passes and accuracy, on made-up figures and where there are none ---------------------------------


def test_a_network_that_is_not_measured_shows_the_command(no_figures: Figures, release: Path) -> None:
    assert "Not measured yet: run `python main.py bench --" in SYSTEMS.render_block("mlp", no_figures)


def test_accuracy_table(no_figures: Figures, release: Path) -> None:
    """Check the table with weights of lenet5 and mlp alone (fixture ``release``), with results on 100 images."""
    found = [row_cells(line) for line in BENCHMARKS.render_block("accuracy", no_figures).splitlines()[2:]]
    assert [row[0] for row in found] == [f"`{name}`" for name in NETWORKS for _ in range(2)]
    told = {(row[0], row[1].partition(":")[0]): row[1:] for row in found}
    assert told["`mlp`", "here"][1].endswith("%") and told["`mlp`", "here"][2:] == ["", "", ""]
    assert told["`fa19`", "here"] == ["here: not trained yet", "", "", "", ""]
    assert told["`fa19`", "report"] == ["report", "76.00%", "76.70%", "", "76.53%"]
    assert told["`k7`", "report"][0] == "report: none given"


# --- what can go wrong ----------------------------------------------------------------------------------------------


@pytest.fixture
def figures_copy(figures_folder: Path, tmp_path: Path) -> Path:
    """Return a folder with copies of kernels.md and its figures."""
    shutil.copytree(figures_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "kernels.md").write_text(TEXT)
    return tmp_path


def write_error(folder: Path) -> str:
    """Return the message of the error when kernels.md in ``folder`` is written from the figures there."""
    return user_error(lambda: __main__.write_documents([replace(KERNELS, path=folder / "kernels.md")], folder))


def test_missing_figures_are_reported_in_one_line_and_keep_the_block(figures_copy: Path) -> None:
    for name in (BENCH["lenet5"], PROFILE):
        (figures_copy / name).unlink()
    message = write_error(figures_copy)
    assert BENCH["lenet5"] in message and "(and 1 more files)" in message
    found, before = (
        {m[1]: m[2] for m in BLOCK.finditer(text)} for text in ((figures_copy / "kernels.md").read_text(), TEXT)
    )
    assert found["targets"] == before["targets"]
    assert found["resources"] == KERNELS.render_block("resources", Figures(figures_copy))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other/1"}'])
def test_wrong_figures_are_reported_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / RESOURCES).write_text(content)
    assert user_error(lambda: Figures(tmp_path)[RESOURCES]).endswith("make it again")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (BENCH["lenet5"], lambda found: found["tables"][0].update(is_op=False)),
        (BENCH["k7"], lambda found: [row.update(ms=None) for row in found["whole_program"]]),
        (RESOURCES, lambda found: [found.pop(name) for name in ("arch", "resources")]),
    ],
    ids=["one convolution", "no whole program timed", "no resources"],
)
def test_figures_that_cannot_be_shown_are_refused(name: str, change: Any, figures_copy: Path) -> None:
    """Check the error for documents that fit their schema, but that the tables cannot show."""
    found = json.loads((figures_copy / name).read_text())
    change(found)
    assert not mistakes(found)
    (figures_copy / name).write_text(json.dumps(found))
    assert re.search(f"{name} has wrong content .*: make it again", write_error(figures_copy))
    assert (figures_copy / "kernels.md").read_text() == TEXT


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (r"<!-- \[\[\[cog targets.*?end\]\]\] -->", "", "block targets occurs 0 times"),
        (r"targets\(\) \]\]\]", "target() ]]]", "block targets occurs 0 times"),
        ("# The ladder", "<!-- [[[cog header() ]]] -->\n<!-- [[[end]]] -->\n# The ladder", "header occurs 2 times"),
        ("# The ladder", "<!-- [[[cog new() ]]] -->\n# The ladder", "block new is unknown"),
        (r"<!-- \[\[\[end\]\]\] -->\n", "", "Unexpected '\\[\\[\\[cog'"),
        ("# The ladder", "<!-- [[[cog 1 / 0 ]]] -->\n<!-- [[[end]]] -->\n# The ladder", "ZeroDivisionError"),
        ("# The ladder", "<!-- [[[cog 1 +  ]]] -->\n<!-- [[[end]]] -->\n# The ladder", "invalid syntax"),
    ],
)
def test_broken_markers_are_reported(old: str, new: str, reason: str, figures: Figures) -> None:
    text = re.sub(old, new, TEXT, count=1, flags=re.DOTALL)
    assert re.search(reason, user_error(lambda: KERNELS.rewrite_blocks(text, figures)))


def test_a_missing_document_is_reported_in_one_line(figures_copy: Path) -> None:
    (figures_copy / "kernels.md").unlink()
    assert re.search(r"cannot read .*kernels.md", write_error(figures_copy))


# --- what is written by hand ------------------------------------------------------------------------------------------


TIMES = {"on the card": "on_card_ms", "host labels": "end_to_end_ms", "one image": "end_to_end_ms"}


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_prose_contains_no_measured_figures(document: Document) -> None:
    assert not re.findall(r"\d (?:ms|µs|TFLOP/s|GB/s)\b", BLOCK.sub("", document.read()))


def test_pictures_were_drawn_from_the_stored_figures() -> None:
    """Check the hashes in the pictures, and that docs/images has exactly the pictures that documents show."""
    assert not pictures.stale_pictures(FIGURES), "run: python -m docs.generate --draw"
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    texts = "".join(
        path.read_text(encoding="utf-8") for path in [*KERNELS.path.parent.glob("*.md"), ROOT / "README.md"]
    )
    assert set(re.findall(r"images/([\w.-]+svg)", texts)) == set(pictures.PICTURES)


def test_stale_pictures_are_found(tmp_path: Path, figures_folder: Path) -> None:
    assert pictures.stale_pictures(figures_folder, tmp_path) == list(pictures.PICTURES)  # the folder is empty
    drawn = pictures.draw_pictures(figures_folder, tmp_path)
    assert [path.name for path in drawn] == list(pictures.PICTURES) and not pictures.stale_pictures(
        figures_folder, tmp_path
    )
    assert pictures.stale_pictures(FIGURES, tmp_path) == list(pictures.PICTURES)
    drawn[0].write_bytes(drawn[0].read_bytes().replace(b"sha256:", b"sha257:"))
    drawn[1].write_bytes(b"no picture")
    assert pictures.stale_pictures(figures_folder, tmp_path) == list(pictures.PICTURES)[:2]


def quoted_rows(document: Path, block: str) -> list[list[str]]:
    """Return the cells of each table row between the markers of ``block``."""
    (text,) = re.findall(rf"<!-- {block}:begin -->\n(.*?)<!-- {block}:end -->", document.read_text("utf-8"), re.DOTALL)
    return [row_cells(line) for line in re.findall(r"^\|.*\|$", text, re.M)]


@pytest.mark.parametrize(
    ("document", "block", "columns"),
    [
        ("README.md", "measured", ("fp32x", "fp16", "int8", "fp32")),
        ("docs/fast-path.md", "fast_path", ("fp16", "fp32x", "int8")),
    ],
)
def test_quoted_times_equal_the_stored_reports(document: str, block: str, columns: tuple[str, ...]) -> None:
    """Compare the times with the reports of the same precision; one image in int8 has neither."""
    checked = 0
    for what, *times in quoted_rows(ROOT / document, block):
        kind = next((kind for kind in TIMES if kind in what), None)
        if kind is None or what.startswith(columns) or not times[0].startswith("0."):
            continue
        for precision, cell in zip(columns, times, strict=False):
            if (precision, kind) == ("int8", "one image"):
                assert not cell
                continue
            name = f"h100_lenet5_{precision}" + "_batch1" * (kind == "one image")
            stored = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
            assert cell.split()[0] == f"{stored[TIMES[kind]]['p50']:.3f}", (what, precision)
            checked += 1
    assert checked == 3 * len(columns) - 1
