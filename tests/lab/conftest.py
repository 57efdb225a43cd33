"""Fixtures for the tests of bench without a card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.lab.peers import rounds
from tests.support.peers_for_tests import CARD
from tests.support.schemas import mistakes

Benched = Callable[[str], tuple[int, str, Any]]


@pytest.fixture
def benched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Benched:
    """Runs ``bench`` with options; returns exit code, output and the JSON document, which is as described."""

    def run(options: str) -> tuple[int, str, dict[str, Any]]:
        target = tmp_path / "bench.json"
        code = main(["bench", *options.split(), "--json", str(target)])
        document = json.loads(target.read_text(encoding="utf-8"))
        assert not mistakes(document)
        return code, capsys.readouterr().out, document

    return run


@pytest.fixture
def some_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a GPU, as far as commands ask for one."""
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: None)
    monkeypatch.setattr("app.cuda.device.describe_gpu", lambda: CARD)


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest that still show an order."""
    few = {"WARMUP": 1, "UNTIMED": 1, "LEAST_RUNS": 2, "MOST_RUNS": 3, "LEAST_SERIES": 1, "PASSES": 3, "TRIES": 3}
    few["LEAST_PASSES"] = 1
    for name, value in few.items():
        monkeypatch.setattr(rounds, name, value)
