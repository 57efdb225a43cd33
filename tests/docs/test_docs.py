"""Test that the documents equal their generator's output for the committed figures; test the generator itself."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.bench import old_reports, training
from app.commands.options.common import parser_of
from app.kernels.registry import variants
from docs.generate import __main__
from docs.generate.__main__ import DOCUMENTS, KERNELS, README, SYSTEMS, Document
from docs.generate.figures import BENCH, FILES, OLD_REPORTS, PEERS, PROFILE, RESOURCES, TRAINING, Figures, command_of
from docs.generate.tables import bench_command
from docs.generate.targets import FIRST_LAYER
from tests.docs.conftest import store
from tests.support.peers_for_tests import CARD, CPU_USED
from tests.support.schemas import mistakes
from tests.support.shell import user_error

TEXT = KERNELS.read()
EVERY_BLOCK = [(document, name) for document in DOCUMENTS for name in document.blocks]
CONSTANT, BEST = "weights in constant memory", "the best of both, fp32 here"
BLOCK = re.compile(r"<!-- \[\[\[cog (\w+)\(\) \]\]\] -->\n(.*?)<!-- \[\[\[end\]\]\] -->", re.DOTALL)


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def rows(made: str) -> set[tuple[str, ...]]:
    """All rows of the tables in a block."""
    return {tuple(cells(line)) for line in made.splitlines() if line.startswith("|")}


# --- the committed document -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path.name)
def test_the_document_holds_what_the_figures_say(document: Document) -> None:
    """Every block, written anew from the committed figures; markers and prose stay as they are."""
    assert document.rewritten(document.read(), Figures()) == (document.read(), []), "run: python -m docs.generate"


@pytest.mark.parametrize(
    ("name", "change", "blocks"),
    [
        (BENCH["fa19"], lambda found: found["totals"][3].update(sum_ms=1.5), {"ladder_fa19"}),
        (BENCH["k7"], lambda found: found["batches"][0]["totals"][3].update(sum_ms=1.5), {"batches_k7"}),
        (PROFILE, lambda found: found["api"][0].update(max_us=1.5), {"profile"}),
        (RESOURCES, lambda found: found["resources"][0].update(registers=99), {"resources"}),
    ],
)
def test_a_changed_figure_changes_its_block(name: str, change: Any, blocks: set[str]) -> None:
    changed = Figures()
    change(changed[name])
    found = {match[1]: match[2] for match in BLOCK.finditer(TEXT)}
    assert blocks <= {block for block in found if found[block] != KERNELS.block(block, changed)}


def test_sections_follow_the_ladder() -> None:
    """One for each step, in the order of the ladder, with its file and its figures."""
    found = re.findall(r"^### Step (\d+): `([\w-]+)`.*\n\n\[(\w+)\.cu\][^#]*\[\[\[cog (\w+)\(", TEXT, re.M)
    wanted = [row for operation in __main__.LADDERS for row in variants(operation)]
    assert found == [
        (str(row.step), row.name, row.source.removesuffix(".cu"), f"{row.operation}{row.step:02}") for row in wanted
    ]


# --- the generator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "name"), EVERY_BLOCK)
def test_every_block_can_be_made(document: Document, name: str, figures: Figures) -> None:
    made = document.block(name, figures)
    assert made.endswith("\n") and made.strip()
    assert "None" not in made and "<!--" not in made
    for table in re.findall(r"(?:^\|.*\n)+", made, re.M):
        columns = {re.sub(r"`[^`]*`", "", line).count("|") for line in table.splitlines()}
        assert len(columns) == 1, table


def test_rewriting_fills_all_and_is_stable(figures: Figures) -> None:
    once, missing = KERNELS.rewritten(TEXT, figures)
    assert not missing
    assert all(match[2] == KERNELS.block(match[1], figures) for match in BLOCK.finditer(once))
    assert KERNELS.rewritten(once, figures) == (once, [])
    assert BLOCK.sub("", once) == BLOCK.sub("", TEXT)


def test_gains_are_against_the_step_that_is_improved_on(figures: Figures) -> None:
    conv, gemm = (
        {row.step: KERNELS.block(f"{operation}{row.step:02}", figures) for row in variants(operation)}
        for operation in __main__.LADDERS
    )
    assert re.search(r"speed-up\s+over\s+direct\s+in\s+fp32:\s+`lenet5`\s+72.00\s+ms\s+\(×1.06\)", conv[4])  # 76 / 72
    assert "over image-loop in fp32" in conv[2] and "brackets" not in conv[1]
    assert re.search(r"in\s+fp16.*over\s+unrolled\s+in\s+fp32", conv[11], re.S)
    assert re.search(r"speed-up\s+over\s+async-copies", conv[13])
    assert re.search(r"speed-up\s+over\s+register-column", gemm[5])


@pytest.mark.parametrize(
    ("document", "block", "row"),
    [
        (KERNELS, "ladder_fa19", "3 shared-tile|fp32|37.00|37.00|74.00|1.99|1.9% mem|5.0% ari|1.08|1.03"),  # 38 / 37
        (SYSTEMS, "fa19", f"{CONSTANT}|10,000|59.10|872.4|931.5|constant|36.00|36.00|72.00|12.9"),
        # step 13, twice; their best took 71.90
        (SYSTEMS, "fa19", f"{BEST}|10,000|23.90|48.00|71.90|register-patch|27.00|27.00|54.00|1.33"),
        (SYSTEMS, "minidnn86", "FP16 arithmetic|5,000|10.65|25.05|35.70|half2|14.50|14.50|29.00|1.23"),
        (KERNELS, "targets", "`lenet5`|fp32|13 register-patch|≤ 2|54.00|**no**|1.2566|2.07|60.00"),
        (KERNELS, "targets", "`lenet5`|fp32|shared-tile|10.00|10.40|1.040|**no**"),
    ],
)
def test_rows_of_the_figures_made_up(document: Document, block: str, row: str, figures: Figures) -> None:
    assert tuple(row.split("|")) in rows(document.block(block, figures))


def test_reasons_and_limits_stand_beside_the_rows(figures: Figures) -> None:
    assert "99 lost in fp32 on conv2: does not fit." in KERNELS.block("ladder_fa19", figures)
    assert f"at most {FIRST_LAYER} ×" in KERNELS.block("targets", figures)


def test_a_counter_that_is_missing_is_a_dash(figures: Figures) -> None:
    made = KERNELS.block("profile", figures)
    assert any(row[3] == "–" for row in rows(made) if len(row) > 10) and made.endswith("\n\nNo more counters.\n")


def test_the_commands_shown_are_commands(figures: Figures) -> None:
    for bench in figures.benches.values():
        options = parser_of("bench").parse_args(bench_command(bench).split()[3:])
        assert (options.network, options.batches) == (bench.network, "100,1000,5000,10000")


@pytest.mark.parametrize("name", FILES)
def test_the_commands_to_run_are_commands(name: str) -> None:
    _, _, command, *arguments = command_of(name).split()
    options = parser_of(command).parse_args(arguments)
    assert options.json == f"docs/benchmarks/{name}"
    for files in (BENCH, PEERS):
        for network in (network for network, file in files.items() if file == name):
            assert (options.network, options.peers) == (network, files is PEERS)


def test_old_reports_are_read_in_milliseconds() -> None:
    reports = old_reports.load()["systems"]
    assert set(reports) == set(BENCH)
    first = reports["fa19"].version("first GPU kernel (loops over images inside)", 10_000)
    assert (first.ops, first.variant) == (pytest.approx([51.1, 327.0]), "image-loop")
    assert reports["minidnn86"].version("direct kernel", 5000).sum_ms == pytest.approx(52.33)
    assert reports["minidnn86"].version("FP16 arithmetic", 100).dtype == "float16"
    bounded = reports["k7"].version("shared-memory input + constant memory", 10_000)
    assert (bounded.ops, bounded.sum_ms, bounded.at_most) == ([], 300.0, True)
    assert reports["lenet5"].whole_program and reports["lenet5"].version("3 streams", 100).sum_ms == 55.0
    assert len(reports["minidnn86"].versions) == 15


# --- whole passes, training and accuracy, on made-up figures and where there are none ---------------------------------

TRAINED = {"network": "mlp", "hidden": 500, "batch": 4096, "device": "Some Card", "cpu": "Some CPU"}
SHARE = {"network": "mlp", "hidden": 500, "batch": 4096}
TRAINING_DOCUMENT: dict[str, Any] = {
    "schema": training.SCHEMA,
    "date": "2026-01-01 00:00 UTC",
    "device": CARD,
    "cpu": CPU_USED,
    "rows": [
        {**TRAINED, "seconds_per_epoch": 0.02, "images_per_second": 3e6, "numpy_seconds_per_epoch": 1.5},
        {**TRAINED, "network": "lenet5", "hidden": None, "batch": 256, "seconds_per_epoch": 0.2}
        | {"images_per_second": 3e5, "numpy_seconds_per_epoch": 40.0},
    ],
    "shares": [{**SHARE, "kernel": "GEMM", "share": 0.6}, {**SHARE, "kernel": "update", "share": 0.4}],
}


def test_what_is_not_measured_says_so(old_figures: Figures, release: Path) -> None:
    for name in ("mlp", "training"):
        assert "Not measured yet: run `python main.py bench --" in SYSTEMS.block(name, old_figures)
    assert ("column sums", "4.9%") in rows(SYSTEMS.block("training", old_figures))


def test_original_weights_stand_beside_the_report_and_ours(figures: Figures) -> None:
    (row,) = (row for row in rows(SYSTEMS.block("minidnn86", figures)) if row[:2] == ("5,000", "87.10%"))
    assert row[2] == "4,355 (87.10%)" and re.fullmatch(r"[\d,]+ \(\d\d\.\d\d%\)", row[-1])


def test_training(old_figures: Figures, tmp_path: Path) -> None:
    store(TRAINING_DOCUMENT, tmp_path / TRAINING)
    where = "Some Card; Some CPU"
    assert {
        ("first", "117.2", "45.7", "2.56"),
        ("`mlp`", "500", "4,096", "0.02", "3,000,000", "1.5", "75.0", where),
        ("`lenet5`", "", "256", "0.2", "300,000", "40", "200", where),
        ("kernel", "report", "mlp 500, batch 4,096"),
        ("GEMM", "74.3%", "60.0%"),
        ("update", "", "40.0%"),
    } <= rows(SYSTEMS.block("training", old_figures))


def test_accuracy(old_figures: Figures, release: Path) -> None:
    """lenet5 and mlp are shipped here, with 100 promised images."""
    found = [cells(line) for line in README.block("accuracy", old_figures).splitlines()[2:]]
    assert [row[0] for row in found] == [f"`{name}`" for name in PEERS for _ in range(2)]
    told = {(row[0], row[1].partition(":")[0]): row[1:] for row in found}
    assert told["`mlp`", "here"][1].endswith("%") and told["`mlp`", "here"][2:] == ["", "", ""]
    assert told["`fa19`", "here"] == ["here: not trained yet", "", "", "", ""]
    assert told["`fa19`", "report"] == ["report", "76.00%", "76.70%", "", "76.53%"]
    assert told["`k7`", "report"][0] == "report: none given"


# --- what can go wrong ----------------------------------------------------------------------------------------------


@pytest.fixture
def copied(figures_folder: Path, tmp_path: Path) -> Path:
    """kernels.md and its figures, to be broken."""
    shutil.copytree(figures_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "kernels.md").write_text(TEXT)
    return tmp_path


def refused(folder: Path) -> str:
    """Why kernels.md in the folder is not written from the figures there."""
    return user_error(lambda: __main__.write([replace(KERNELS, path=folder / "kernels.md")], folder))


def test_missing_figures_are_one_line_and_keep_the_block(copied: Path) -> None:
    for name in (BENCH["lenet5"], PROFILE):
        (copied / name).unlink()
    message = refused(copied)
    assert BENCH["lenet5"] in message and "(and 1 more files)" in message
    found, before = ({m[1]: m[2] for m in BLOCK.finditer(text)} for text in ((copied / "kernels.md").read_text(), TEXT))
    assert found["targets"] == before["targets"]
    assert found["resources"] == KERNELS.block("resources", Figures(copied))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other/1"}'])
def test_wrong_figures_are_one_line(content: str, tmp_path: Path) -> None:
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
def test_figures_that_cannot_be_shown_are_refused(name: str, change: Any, copied: Path) -> None:
    """They are documents that the command may write."""
    found = json.loads((copied / name).read_text())
    change(found)
    assert not mistakes(found)
    (copied / name).write_text(json.dumps(found))
    assert re.search(f"{name} has wrong content .*: make it again", refused(copied))


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
    assert re.search(reason, user_error(lambda: KERNELS.rewritten(text, figures)))


def test_nothing_is_written_where_a_block_fails(copied: Path) -> None:
    broken = json.loads((copied / OLD_REPORTS).read_text())
    del broken["systems"]["fa19"]["versions"][2:]
    (copied / OLD_REPORTS).write_text(json.dumps(broken))
    assert re.search(r"has no version 'one image per grid z'.*restore it", refused(copied))
    assert (copied / "kernels.md").read_text() == TEXT


def test_a_missing_document_is_one_line(copied: Path) -> None:
    (copied / "kernels.md").unlink()
    assert re.search(r"cannot read .*kernels.md", refused(copied))
