"""Fixtures for the tests of bench without a card."""

import pytest

from app.bench.peers import rounds
from tests.support.peers_for_tests import CARD


@pytest.fixture
def some_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a GPU, as far as commands ask for one."""
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: None)
    monkeypatch.setattr("app.cuda.device.describe_gpu", lambda: CARD)


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest that still show an order."""
    few = {"WARMUP": 1, "UNTIMED": 1, "LEAST_RUNS": 2, "MOST_RUNS": 3, "LEAST_SERIES": 1, "PASSES": 3, "TRIES": 1}
    for name, value in few.items():
        monkeypatch.setattr(rounds, name, value)
