"""Test ``main.py compare A... -- B...``: several reports per side, and what is refused of them."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tests.lab.compare.test_compare import REPORT, slowed, stored
from tests.support.schemas import mistakes
from tests.support.shell import Refuses

Sides = Callable[..., tuple[int, str, dict[str, Any]]]


def noisy(document: dict[str, Any], rng: random.Random, spread: float, factor: float = 1) -> dict[str, Any]:
    """The document of another run: all times at a level of its own."""
    return slowed(document, factor * rng.uniform(1 - spread, 1 + spread))


@pytest.fixture
def compared_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sides:
    """Compares several reports per side; returns exit code, text and JSON."""

    def run(before: list[dict[str, Any]], after: list[dict[str, Any]], *options: str) -> tuple[int, str, Any]:
        names = []
        for side, documents in (("a", before), ("b", after)):
            names.append([str(stored(tmp_path / f"{side}{at}", "report/4", one)) for at, one in enumerate(documents)])
        target = tmp_path / "compared.json"
        code = main(["compare", "--overwrite", "--json", str(target), *names[0], "--", *names[1], *options])
        found = json.loads(target.read_text())
        assert not mistakes(found) and [found["before"], found["after"]] == names
        return code, " ".join(capsys.readouterr().out.split()), found

    return run


def test_several_reports_a_side_are_judged_by_the_levels_of_their_runs(compared_sides: Sides) -> None:
    """Each run's samples lie within 2 %, and runs of one program 20 % apart: two of them would be told apart."""
    rng = random.Random(1)
    runs = [noisy(REPORT, rng, 0.2) for _ in range(10)]
    code, out, found = compared_sides(runs[:5], runs[5:], "--fail-above", "3%")
    assert code == 0 and {row["verdict"] for row in found["rows"]} == {"same"} and found["noise"] == "runs"
    assert "PASSED: no row became slower by over 3 %" in out and "two runs" not in out
    assert "in at most 5 % of cases, over all rows together" in out
    slower = [noisy(REPORT, rng, 0.2, 2.0) for _ in range(5)]
    code, out, found = compared_sides(runs[:5], slower, "--fail-above", "3%")
    assert code == 1 and {row["verdict"] for row in found["rows"]} == {"slower"}
    assert "FAILED: slower by over 3 %: on the card, end to end, conv1+relu1, conv1 alone" in out
    (row, *_) = found["rows"]
    product = math.prod(run["on_card_ms"]["p50"] for run in slower)
    assert row["after"] == pytest.approx(product**0.2) and row["interval"][0] < row["percent"] < row["interval"][1]


def test_runs_without_samples_have_levels(compared_sides: Sides) -> None:
    bare = [{**REPORT, "on_card_ms": {"p50": time}} for time in (2.0, 2.1, 1.9, 4.0, 4.1, 3.9)]
    _, _, found = compared_sides(bare[:3], bare[3:])
    assert found["rows"][0]["verdict"] == "slower"


def test_rows_and_settings_that_some_report_lacks(tmp_path: Path, compared_sides: Sides, refuses: Refuses) -> None:
    rng = random.Random(2)
    runs = [noisy(REPORT, rng, 0.01) for _ in range(5)]
    runs[1]["op_times"], runs[4]["layers"] = [], []
    _, out, found = compared_sides(runs[:3], runs[3:])
    assert [row["name"] for row in found["rows"]] == ["on the card", "end to end"]
    assert "not in every report: conv1+relu1 (3 before, 1 after), conv1 alone (2 before, 2 after)" in out
    runs[1]["batch"] = 7
    paths = [stored(tmp_path / f"{at}", "report/4", one) for at, one in enumerate(runs)]
    refuses(["compare", *paths[:3], "--", *paths[3:]], r"different settings .batch: 100, 7\).*--ignore-settings")
    _, out, found = compared_sides(runs[:3], runs[3:], "--ignore-settings")
    assert found["differences"] == [{"name": "batch", "before": [100, 7], "after": [100]}]
    assert "batch: 100, 7 → 100" in out


def test_sides_are_lists_of_different_runs(tmp_path: Path, refuses: Refuses) -> None:
    rng = random.Random(3)
    a, b, c, d = (stored(tmp_path / name, "report/4", noisy(REPORT, rng, 0.1)) for name in "abcd")
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
