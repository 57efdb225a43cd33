"""The documents hold what their generator makes of the committed figures; the generator itself, on made-up ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.bench.graphs import network_graph
from app.bench.ladder.cases import network_items, rungs
from app.bench.ladder.results import CPU, DEBUG, LIBRARY, OURS, SCHEMA, Peaks, Result, Table, table_document, totals
from app.bench.stored_checks import problem_of
from app.bench.stored_figures import BENCH, FIGURES, FILES, NETWORKS, OLD_REPORTS, PROFILE, RESOURCES, MissingError
from app.bench.stored_figures import load as load_figures
from app.commands.options.bench import bench_parser
from app.commands.options.kernels import kernels_parser
from app.commands.options.profile import profile_parser
from app.errors import UserError
from app.kernels.problems import key
from docs.generate import __main__
from docs.generate.__main__ import DOCUMENTS, KERNELS, SYSTEMS
from docs.generate.document import MARKED, Document
from docs.generate.figures import Figures
from docs.generate.story import gains
from docs.generate.tables import bench_command
from docs.generate.targets import FIRST_LAYER

TEXT = KERNELS.read()
EVERY_BLOCK = [(document, name) for document in DOCUMENTS for name in document.blocks]
CARD = {"name": "Some Card", "driver": "1", "cuda": "13.0", "driver_cuda": "13.0", "cupy": "14"}
SIZES = (100, 1000, 5000, 10_000)


def bench_document(network: str) -> dict[str, Any]:
    """As ``bench`` writes it: the row of step n takes 40 - n ms, half as much in float16; debug 100, CPU 1000."""
    tables = []
    for item in network_items(network_graph(network)):
        rows = [Result(CPU, "CPU, NumPy", next(iter(item.problems)), ms=1000.0)]
        for dtype, _, row in rungs(item, None):
            kind = LIBRARY if row.needs_cublas else OURS
            ms = (40 - row.step) / (2 if dtype == "float16" else 1)
            rows.append(Result(kind, row.name, dtype, row.step, ms=ms))
            if row.name == "direct" and item.is_op and dtype == "float32":
                rows.append(Result(DEBUG, "direct, device debug", dtype, row.step, ms=100.0))
        if item.is_op:
            rows.append(Result(LIBRARY, "cuDNN, TF32 off", "float32", ms=30.0))
            rows.append(Result(OURS, "lost", "float32", 99, reason="does not fit"))
        tables.append(Table(item.name, item.operation, item.is_op, 10_000, item.problems, tuple(rows)))
    timed = [("fp32", "direct", 20.0), ("fp32", "shared-tile", 10.0), ("fp32", "auto", 10.4), ("fp16", "auto", None)]
    programs = [{"precision": precision, "conv": conv, "ms": ms} for precision, conv, ms in timed]
    peaks = Peaks({"float32": 65.0, "tfloat32": 330.0, "float16": 660.0}, 3000.0)
    return {
        "schema": SCHEMA,
        "date": "2026-01-01 00:00 UTC",
        "subject": f"network {network}",
        "device": CARD,
        "cpu": {"name": "Some CPU", "threads": 2, "numpy": "2.0"},
        "images": 10_000,
        "settings": {"noise": 0.01, "l2": "cold", "rule": "the rule"},
        "peaks": {"tflops": dict(peaks.tflops), "gbytes_per_s": peaks.gbytes_per_s},
        "tables": [table_document(table, peaks) for table in tables],
        "totals": totals(tables),
        "batches": [{"images": size, "totals": totals(tables), "whole_program": programs} for size in SIZES],
        "whole_program": programs,
        "notes": [],
    }


PROFILED: dict[str, Any] = {
    "schema": "lenet5-inference/profile/1",
    "device": CARD,
    "network": "lenet5",
    "precision": "fp32",
    "batch": 10_000,
    "settings": {"streams": 4},
    "rows": [
        dict.fromkeys(("calls", "total_ms", "share", "min_ms", "average_ms", "max_ms"), 0.5)
        | {"layer": "conv1", "name": "direct"}
    ],
    "api": [
        {"name": "cuLaunchKernel", "calls": 40.0, "total_ms": 0.2, "share": 0.1, "average_us": 5.0, "max_us": 9.0},
    ],
    "counters": [
        {"layer": "conv1", "name": "direct", "load": 19.0, "store": None, "warps": 63.0, "occupancy": 50.0}
        | {"throughput": {"SM": 10.0, "DRAM": 80.0}, "bound": "DRAM"}
    ],
    "counters_note": "no more counters",
}
COMPILED: dict[str, Any] = {
    "schema": "lenet5-inference/kernels/1",
    "arch": "sm_90a",
    "resources": [
        dict.fromkeys(("threads", "registers", "static_shared", "dynamic_shared", "constant", "blocks"), 32)
        | {"operation": "conv", "name": "direct", "layer": "conv1", "entry": "conv_direct", "occupancy": 1.0}
        | {"spill_stores": 0, "spill_loads": 0},
        {"operation": "gemm", "name": "cublas", "layer": "fc1", "reason": "the library's"},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder of figures, made up but for the old reports."""
    made = tmp_path_factory.mktemp("figures")
    for network, name in BENCH.items():
        (made / name).write_text(json.dumps(bench_document(network)))
    (made / PROFILE).write_text(json.dumps(PROFILED))
    (made / RESOURCES).write_text(json.dumps(COMPILED))
    (made / OLD_REPORTS).write_text((FIGURES / OLD_REPORTS).read_text())
    return made


@pytest.fixture(scope="module")
def figures(folder: Path) -> Figures:
    return Figures(folder)


# --- the committed document -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "name"), EVERY_BLOCK)
def test_the_document_holds_what_the_figures_say(document: Document, name: str) -> None:
    found = {match[1]: match[2] for match in MARKED.finditer(document.read())}
    try:
        wanted = document.block(name, Figures(FIGURES))
    except MissingError as reason:
        pytest.skip(f"no measured JSON yet: {reason}")
    assert found[name] == wanted, "run: python -m docs.generate"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_document_has_every_marker_once(document: Document) -> None:
    document.check_markers(document.read())


def test_pictures_and_links_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    pictures = [link for link in links if link.endswith(".png")]
    assert pictures
    for link in links:
        if link not in pictures:
            assert (KERNELS.path.parent / link).exists(), link
    absent = [link for link in pictures if not (KERNELS.path.parent / link).exists()]
    if absent and not all((FIGURES / name).exists() for name in (*BENCH.values(), PROFILE, RESOURCES)):
        pytest.skip(f"not everything is measured yet: no {absent[0]}")
    assert not absent


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_anchors_exist(document: Document) -> None:
    """Within the document, and in others beside it."""
    for path, anchor in re.findall(r"\]\(([\w.-]*)#([^)]+)\)", document.read()):
        text = (document.path.parent / (path or document.path.name)).read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.*)", text, re.M)
        assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], anchor


@pytest.mark.parametrize("document", [KERNELS, SYSTEMS])
def test_prose_holds_no_measured_figures(document: Document) -> None:
    """A number with a unit of time or rate stands in a block or nowhere."""
    assert not re.findall(r"\d (?:ms|µs|TFLOP/s|GB/s)\b", MARKED.sub("", document.read()))


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
    assert all(match[2] == KERNELS.block(match[1], figures) for match in MARKED.finditer(once))
    assert KERNELS.rewritten(once, figures) == (once, [])
    assert MARKED.sub("", once) == MARKED.sub("", TEXT)


def test_gains_are_against_the_step_that_is_improved_on(figures: Figures) -> None:
    conv, gemm = (gains(figures.benches, operation) for operation in ("conv", "gemm"))
    assert re.search(r"fast\s+as\s+direct\s+in\s+fp32:\s+`lenet5`\s+72.00\s+ms\s+\(×1.06\)", conv[4])  # 76 / 72
    assert "as image-loop in fp32" in conv[2] and "brackets" not in conv[1]
    assert re.search(r"in\s+fp16.*as\s+unrolled\s+in\s+fp32", conv[11], re.S)
    assert re.search(r"as\s+fast\s+as\s+register-tiled", conv[13])
    assert re.search(r"as\s+fast\s+as\s+register-tiled", gemm[5])


def test_ladder_shows_sums_shares_and_reasons(figures: Figures) -> None:
    made = KERNELS.block("ladder_fa19", figures)
    row = next(line for line in made.splitlines() if line.startswith("| 3 shared-tile | fp32"))
    assert [cell.strip() for cell in row.split("|")[3:6]] == ["37.00", "37.00", "74.00"]
    assert row.split("|")[-2].strip() == "1.03"  # 38 / 37
    assert "99 lost in fp32 on conv2: does not fit." in made
    made = SYSTEMS.block("fa19", figures)
    assert "| weights in constant memory | 10,000 | 59.10 | 872.4 | 931.5 | constant | 36.00 | 36.00 | 72.00 |" in made
    ours = "| register-patch | 27.00 | 27.00 | 54.00 | 1.33 |"  # step 13, twice; their best took 71.90
    assert f"| the best of both, fp32 here | 10,000 | 23.90 | 48.00 | 71.90 {ours}" in made


def test_old_figures_stand_beside_ours_over_the_same_batch(figures: Figures) -> None:
    made = SYSTEMS.block("minidnn86", figures)
    row = next(line for line in made.splitlines() if line.startswith("| FP16 arithmetic | 5,000"))
    assert [cell.strip() for cell in row.split("|")[3:-1]] == [
        *("10.65", "25.05", "35.70"),
        *("half2", "14.50", "14.50", "29.00", "1.23"),
    ]


def test_targets_say_what_is_missed(figures: Figures) -> None:
    made = KERNELS.block("targets", figures)
    assert "| `lenet5` | fp32 | 13 register-patch | ≤ 2 | 54.00 | **no** |" in made
    assert "| `lenet5` | fp32 | shared-tile | 10.00 | 10.40 | 1.040 | **no** |" in made
    assert f"at most {FIRST_LAYER} ×" in made


def test_problems_are_read_back() -> None:
    for network in NETWORKS:
        for item in network_items(network_graph(network)):
            if item.operation == "conv":
                assert all(problem_of(key(problem)) == problem for problem in item.problems.values())


def test_the_commands_shown_are_commands(figures: Figures) -> None:
    for bench in figures.benches.values():
        options = bench_parser().parse_args(bench_command(bench).split()[3:])
        assert (options.network, options.batches) == (bench.network, "100,1000,5000,10000")
    for name, parser in ((PROFILE, profile_parser()), (RESOURCES, kernels_parser())):
        assert parser.parse_args(FILES[name][1].split()[3:]).json == f"docs/benchmarks/{name}"


def test_old_reports_are_read_in_milliseconds() -> None:
    reports = Figures(FIGURES).old
    assert set(reports) == set(NETWORKS)
    first = reports["fa19"].version("first GPU kernel (loops over images inside)", 10_000)
    assert (first.ops, first.variant) == (pytest.approx((51.1, 327.0)), "image-loop")
    assert reports["minidnn86"].version("direct kernel", 5000).sum_ms == pytest.approx(52.33)
    assert reports["minidnn86"].version("FP16 arithmetic", 100).dtype == "float16"
    bounded = reports["k7"].version("shared-memory input + constant memory", 10_000)
    assert (bounded.ops, bounded.sum_ms, bounded.at_most) == ((), 300.0, True)
    assert reports["lenet5"].whole_program and reports["lenet5"].version("3 streams", 100).sum_ms == 55.0
    assert len(reports["minidnn86"].versions) == 15


# --- what can go wrong ----------------------------------------------------------------------------------------------


def test_missing_figures_are_one_line_and_keep_the_block(folder: Path, tmp_path: Path) -> None:
    for name in (OLD_REPORTS, RESOURCES, *(BENCH[network] for network in NETWORKS[1:])):
        (tmp_path / name).write_text((folder / name).read_text())
    document = tmp_path / "kernels.md"
    document.write_text(TEXT)
    with pytest.raises(UserError) as error:
        __main__.write([replace(KERNELS, path=document)], tmp_path)
    message = str(error.value)
    assert "\n" not in message and BENCH["lenet5"] in message and "(and 1 more files)" in message
    found, before = ({m[1]: m[2] for m in MARKED.finditer(text)} for text in (document.read_text(), TEXT))
    assert found["targets"] == before["targets"]
    assert found["resources"] == KERNELS.block("resources", Figures(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other/1"}'])
def test_wrong_figures_are_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / RESOURCES).write_text(content)
    with pytest.raises(UserError, match="make it again") as error:
        load_figures(tmp_path, RESOURCES)
    assert "\n" not in str(error.value) and not isinstance(error.value, MissingError)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("<!-- targets:end -->\n", ""), "block targets is there 0 times"),
        (("<!-- targets:begin -->", "<!-- target:begin -->"), "block targets is there 0 times"),
        (("# The ladder", "<!-- header:begin -->\n<!-- header:end -->\n# The ladder"), "header is there 2 times"),
        (("# The ladder", "<!-- new:begin -->\n# The ladder"), "block new is unknown"),
    ],
)
def test_broken_markers_are_told(change: tuple[str, str], reason: str, figures: Figures) -> None:
    with pytest.raises(UserError, match=reason):
        KERNELS.rewritten(TEXT.replace(*change, 1), figures)


def test_a_missing_document_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*kernels.md"):
        __main__.write([replace(KERNELS, path=tmp_path / "kernels.md")], folder)
