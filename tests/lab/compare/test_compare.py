"""Test ``main.py compare``: two reports, several per side, and refused reports."""

import json
import math
import random
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest

from app.cli import main
from app.lab.compare.rows import KINDS, report_context, timed_rows
from app.records.derive import document_types, record_fields
from app.terminal.text import WIDTH
from docs.generate.figures import FIGURES
from tests.support.peers_for_tests import CARD, CPU_USED
from tests.support.schemas import mistakes
from tests.support.shell import Refuses

TIMES = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.02, 1.98]
QUANTILES = {"p50": 2.0, "samples": TIMES}
ROW = {"name": "direct", "dtype": "float32", "ms": 2.0, "samples": TIMES}
POINT = {"parameters": {"BM": 32}, "ms": 2.0, "samples": TIMES}
# A document of each kind, with the fields that compare reads, and the names of its rows.
REPORT: dict[str, Any] = {
    "device": CARD,
    "network": {"name": "lenet5"},
    "weights": {"sha256": "0" * 64},
    "data": {"dtype": "uint8"},
    "precision": "fp16",
    "batch": 100,
    "settings": {"streams": 4, "runs": 8},
    "on_card_ms": QUANTILES,
    "end_to_end_ms": QUANTILES,
    "raw_copy_ms": None,
    "compare": None,
    "layers": [{"name": "conv1+relu1", "ms": 2.0, "samples": TIMES}],
    "op_times": [{"name": "conv1", "ms": 2.0, "samples": TIMES}],
}
PROGRAM = {"conv": "auto", "precision": "fp32", "ms": 2.0, "samples": TIMES}
BENCH = {
    "device": CARD,
    "cpu": CPU_USED,
    "subject": "network lenet5",
    "images": 100,
    "settings": {"l2": "cold"},
    "tables": [{"item": "conv1", "rows": [ROW, {**ROW, "name": "cublas", "ms": None}]}],
    "batches": [{"images": 100, "whole_program": [PROGRAM]}],
}
PEER_ROW: dict[str, Any] = {"engine": "torch", "setting": "eager, contiguous", "precision": "fp32"}
PEER_ROW |= {"on_card_ms": QUANTILES, "end_to_end_ms": None}
DOCUMENTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "report/4": (REPORT, {"on the card", "end to end", "conv1+relu1", "conv1 alone"}),
    "bench/1": (BENCH, {"conv1 direct float32", "program of 100 images, auto fp32"}),
    "peers/2": (
        {
            "device": CARD,
            "software": {"torch": "2"},
            "comparisons": [{"network": "lenet5", "images": 100, "rows": [PEER_ROW]}],
        },
        {"lenet5, 100 images: torch eager, contiguous fp32 on the card"},
    ),
    "train/1": ({"settings": {}, "workers": 1, "epochs": [{"seconds": time} for time in TIMES]}, {"an epoch"}),
    "sweep/1": (
        {
            "card": "Some Card",
            "network": "lenet5",
            "operation": "conv",
            "variant": "direct",
            "precision": "fp32",
            "fused": False,
            "images": 100,
            "layers": [{"layer": "conv1", "points": [POINT]}],
        },
        {"conv1 BM=32"},
    ),
    "pipeline-sweep/1": (
        {
            "card": "Some Card",
            "network": "lenet5",
            "precision": "auto",
            "images": 100,
            "points": [
                {"streams": 2, "chunk": 50, "ms": 2.0, "samples": TIMES},
                {"streams": 3, "chunk": 50, "ms": None},
            ],
        },
        {"2 streams, chunks of 50"},
    ),
}
Side = dict[str, Any] | list[dict[str, Any]]  # one report, or several
Compare = Callable[..., tuple[int, str, dict[str, Any]]]


def scale_times(value: Any, factor: float) -> Any:
    """Return the document with every time multiplied by the factor."""
    if isinstance(value, dict):
        return {name: scale_times(inner, factor) for name, inner in value.items()}
    if isinstance(value, list):
        return [scale_times(inner, factor) for inner in value]
    return value * factor if isinstance(value, float) else value


def store(path: Path, kind: str, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schema": f"lenet5-inference/{kind}", **document}))
    return path


@pytest.fixture
def run_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that compares documents and returns exit code, text without line breaks, and JSON."""

    def run(kind: str, before: Side, after: Side, *options: str) -> tuple[int, str, dict[str, Any]]:
        names = []
        for side, given in (("a", before), ("b", after)):
            documents = given if isinstance(given, list) else [given]
            names.append([str(store(tmp_path / f"{side}{at}", kind, one)) for at, one in enumerate(documents)])
        target = tmp_path / "compared.json"
        code = main(["compare", "--overwrite", "--json", str(target), *names[0], "--", *names[1], *options])
        found = json.loads(target.read_text())
        assert not mistakes(found) and [found["before"], found["after"]] == names
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= WIDTH or str(tmp_path) in out
        return code, " ".join(out.split()), found

    return run


def test_every_kind_and_current_version_is_tested() -> None:
    names = [kind.partition("/")[0] for kind in DOCUMENTS]
    written = {get_args(record_fields(document_types()[name])["schema"])[0] for name in names}
    assert {f"lenet5-inference/{kind}" for kind in DOCUMENTS} == set(KINDS) == written


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_slower_and_faster_rows_are_found(kind: str, run_compare: Compare) -> None:
    document, names = DOCUMENTS[kind]
    for factor, expected in ((1.0, "same"), (1.5, "slower run"), (0.5, "faster run")):
        code, out, found = run_compare(kind, document, scale_times(document, factor), "--fail-above", "0.5%")
        assert {row["name"] for row in found["rows"]} == names
        assert {row["verdict"] for row in found["rows"]} == {expected}
        assert all(row["percent"] == pytest.approx(100 * factor - 100) for row in found["rows"])
        assert code == (expected == "slower run") and set(found["failed"]) == (names if code else set())
        assert f"{len(names)} {expected}" in out and ("FAILED" in out) is bool(code)
        assert found["noise"] == "samples" and "slower by over 0.5 %, between these two runs" in out
        assert "not how far runs of one program lie apart" in out


def test_stored_documents_of_every_kind_are_read() -> None:
    read = 0
    for path in FIGURES.glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] in KINDS:
            assert timed_rows(document) and report_context(document)[0]
            read += 1
    assert read > 8


def test_different_machines_and_settings_are_refused(tmp_path: Path, run_compare: Compare, refuses: Refuses) -> None:
    other = {**REPORT, "device": {**CARD, "name": "Other Card", "driver": "600"}, "batch": 200}
    first, second = store(tmp_path / "1", "report/4", REPORT), store(tmp_path / "2", "report/4", other)
    refuses(["compare", first, second], "different machines .device: 'Some Card', 'Other Card'.*--ignore-settings")
    cold, warm = (store(tmp_path / l2, "bench/1", {**BENCH, "settings": {"l2": l2}}) for l2 in ("cold", "warm"))
    refuses(["compare", cold, warm], "different settings .l2: 'cold', 'warm'.*--ignore-settings")
    code, out, found = run_compare("report/4", REPORT, other, "--ignore-settings")
    assert code == 0 and [one["name"] for one in found["differences"]] == ["device", "batch", "driver"]
    assert "driver: None → 600" in out


def test_versions_may_differ_and_unmatched_rows_are_named(run_compare: Compare) -> None:
    other = deepcopy(REPORT)
    other |= {"device": {**CARD, "cupy": "15"}, "settings": {"streams": 4, "runs": 100}, "op_times": []}
    other["layers"][0] |= {"samples": []}
    _, out, found = run_compare("report/4", REPORT, other)
    assert found["left_out"] == [{"name": "conv1 alone", "before": 1, "after": 0}]
    assert "not in every report: conv1 alone (1 before, 0 after)" in out
    (row,) = (row for row in found["rows"] if row["name"] == "conv1+relu1")
    assert row["interval"] is None and row["verdict"] == "unknown" and "too few samples" in out


def test_impossible_times_are_refused(tmp_path: Path, run_compare: Compare, refuses: Refuses) -> None:
    good = store(tmp_path / "good", "report/4", REPORT)
    for time in (5e-324, 1e-310, 0.9e-9, 1.1e12, 1e308, -1.0, 10**400):
        for times in ({"p50": time}, {"p50": 2.0, "samples": [*TIMES, time]}):
            bad = store(tmp_path / "bad", "report/4", {**REPORT, "on_card_ms": times})
            refuses(["compare", good, bad], "on the card has a time that is none")
            refuses(["compare", bad, good], "on the card has a time that is none")
    longest = {**REPORT, "on_card_ms": {"p50": 1e12, "samples": [1e12] * 5}}
    shortest = {**REPORT, "on_card_ms": {"p50": 1e-9, "samples": [1e-9] * 5}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for before, after, expected in ((longest, shortest, "faster run"), (shortest, longest, "slower run")):
            _, out, found = run_compare("report/4", before, after)
            assert found["rows"][0]["verdict"] == expected and "inf" not in out and "nan" not in out


def test_reports_without_common_times_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    good = store(tmp_path / "good", "report/4", REPORT)
    refuses(["compare", good, store(tmp_path / "bench", "bench/1", BENCH)], "different kinds")
    refuses(["compare", good, store(tmp_path / "old", "report/2", REPORT)], "report/2' has no times")
    refuses(["compare", good, store(tmp_path / "bad", "report/4", {})], "wrong content.*missing")
    broken = {**REPORT, "on_card_ms": {"p50": "soon"}}
    refuses(["compare", good, store(tmp_path / "bad", "report/4", broken)], "on the card has a time that is none")
    broken = {**REPORT, "end_to_end_ms": {**QUANTILES, "p50": 1e-3}}
    refuses(
        ["compare", good, store(tmp_path / "bad", "report/4", broken)], "end to end has a median that its samples c"
    )
    train = {"settings": {}, "workers": 1, "epochs": []}
    refuses(["compare", *[store(tmp_path / "t", "train/1", train)] * 2], "no timed row in common")
    refuses(["compare", good, good, "--json", good], "same file")


def simulate_run(document: dict[str, Any], rng: random.Random, spread: float, factor: float = 1) -> dict[str, Any]:
    """Return the document with all times multiplied by one random factor, as in another run."""
    return scale_times(document, factor * rng.uniform(1 - spread, 1 + spread))


def test_several_reports_are_judged_by_the_scatter_between_runs(run_compare: Compare) -> None:
    """Samples scatter by 2 % within a run, runs of one program by 20 %: two single runs would seem different."""
    rng = random.Random(1)
    runs = [simulate_run(REPORT, rng, 0.2) for _ in range(10)]
    code, out, found = run_compare("report/4", runs[:5], runs[5:], "--fail-above", "3%")
    assert code == 0 and {row["verdict"] for row in found["rows"]} == {"same"} and found["noise"] == "runs"
    assert "PASSED: no row became slower by over 3 %" in out and "two runs" not in out
    assert "in at most 5 % of cases, over all rows together" in out
    slower = [simulate_run(REPORT, rng, 0.2, 2.0) for _ in range(5)]
    code, out, found = run_compare("report/4", runs[:5], slower, "--fail-above", "3%")
    assert code == 1 and {row["verdict"] for row in found["rows"]} == {"slower"}
    assert "FAILED: slower by over 3 %: on the card, end to end, conv1+relu1, conv1 alone" in out
    (row, *_) = found["rows"]
    product = math.prod(run["on_card_ms"]["p50"] for run in slower)
    assert row["after"] == pytest.approx(product**0.2) and row["interval"][0] < row["percent"] < row["interval"][1]


def test_runs_without_samples_are_compared_by_their_medians(run_compare: Compare) -> None:
    bare = [{**REPORT, "on_card_ms": {"p50": time}} for time in (2.0, 2.1, 1.9, 4.0, 4.1, 3.9)]
    _, _, found = run_compare("report/4", bare[:3], bare[3:])
    assert found["rows"][0]["verdict"] == "slower"


def test_rows_and_settings_that_some_reports_lack(tmp_path: Path, run_compare: Compare, refuses: Refuses) -> None:
    rng = random.Random(2)
    runs = [simulate_run(REPORT, rng, 0.01) for _ in range(5)]
    runs[1]["op_times"], runs[4]["layers"] = [], []
    _, out, found = run_compare("report/4", runs[:3], runs[3:])
    assert [row["name"] for row in found["rows"]] == ["on the card", "end to end"]
    assert "not in every report: conv1+relu1 (3 before, 1 after), conv1 alone (2 before, 2 after)" in out
    runs[1]["batch"] = 7
    paths = [store(tmp_path / f"{at}", "report/4", one) for at, one in enumerate(runs)]
    refuses(["compare", *paths[:3], "--", *paths[3:]], r"different settings .batch: 100, 7\).*--ignore-settings")
    _, out, found = run_compare("report/4", runs[:3], runs[3:], "--ignore-settings")
    assert found["differences"] == [{"name": "batch", "before": [100, 7], "after": [100]}]
    assert "batch: 100, 7 → 100" in out


def test_sides_are_lists_of_different_runs(tmp_path: Path, refuses: Refuses) -> None:
    rng = random.Random(3)
    a, b, c, d = (store(tmp_path / name, "report/4", simulate_run(REPORT, rng, 0.1)) for name in "abcd")
    copy = tmp_path / "copy"
    copy.write_bytes(a.read_bytes())
    refuses(["compare", a], "one list of 1 reports: name two, or two lists")
    refuses(["compare", a, b, c, d], "one list of 4 reports: name two, or two lists")
    refuses(["compare", a, "--", b, c], "one report cannot be held against several: name at least two on either side")
    refuses(["compare", a, b, "--", c], "one report cannot be held against several")
    refuses(["compare", a, b, copy, "--", c, d], "a and .*copy are the same report: name each run once")
    refuses(["compare", a, b, "--", c, "--", d], "given twice; name the reports of a side in one list")
    refuses(["compare", a, b, "--"], "expected at least one argument")
    refuses(["compare", a, b, "--", c, d, "--json", d], "same file as --after")
    refuses(["compare", a, b, "--", c, d, "--json", b], "same file as BEFORE")
    assert main(["compare", str(a), "--", str(b)]) == main(["compare", str(a), "--after", str(b)]) == 0
    for words in ([a, "--wide", b], ["--wide", a, b], [a, b, "--wide"]):
        assert main(["compare", *map(str, words)]) == 0
    refuses(["compare", a, b, "--wide", c], "one list of 3 reports")
    refuses(["compare", a, b, "--", c, d, "--wide", copy], "unrecognized arguments: .*copy")
    refuses(["compare", a, b, "--fail", "3"], "unrecognized arguments: --fail.*did you mean --fail-above")
