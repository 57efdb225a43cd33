"""Engines for tests of ``bench --peers``, and a batch that needs no files but the weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from app.bench import peers_measure
from app.bench.batch import UNWRITTEN, Batch
from app.bench.peers_measure import Candidate, Entrant
from app.graph import build, find_network
from app.reference import Reference
from app.weights import load_weights

CARD = {"name": "Some Card", "architecture": "sm_90a", "driver": None, "cuda": "13.0", "cupy": "14"}


def small_batch(count: int = 40) -> Batch:
    """Noise as images; the reference is the float64 NumPy pass, and the truth is what it says."""
    weights = load_weights()
    graph = build(find_network("lenet5"), weights)
    images = np.random.default_rng(1).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    logits = graph.reference(images)
    labels = logits.argmax(axis=1).astype(np.uint8)
    best = np.sort(logits, axis=1)
    return Batch(graph, weights, images, labels, Reference(labels, best[:, -1] - best[:, -2]))


class FakeEngine:
    """Answers ``answer``; keeps a diary of what it was asked."""

    note = "a note"
    arithmetic: str | None = None

    def __init__(self, answer: np.ndarray, labels: np.ndarray, diary: list[str], name: str) -> None:
        self.answer, self.labels, self.diary, self.name = answer, labels, diary, name
        self.card = np.full_like(answer, UNWRITTEN)

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def load(self) -> None:
        self.card[:] = UNWRITTEN

    def enqueue(self) -> None:
        self.card[:] = self.answer

    def synchronize(self) -> None:
        pass

    def card_labels(self) -> np.ndarray:
        return self.card

    def wipe(self) -> None:
        pass

    def run(self) -> None:
        assert (self.labels == UNWRITTEN).all()
        self.diary.append(self.name)
        self.labels[:] = self.answer

    def close(self) -> None:
        self.diary.append(f"{self.name} closed")


class OurFake(FakeEngine):
    """One that the accuracy check judges."""

    arithmetic = "float32"


def fake(
    name: str, answer: np.ndarray, diary: list[str], kind: type[FakeEngine] = FakeEngine, *, ours: bool = False
) -> Candidate:
    """A candidate that becomes a FakeEngine."""
    return Candidate(name, "fp32", ours, lambda _, __, labels: kind(answer, labels, diary, name))


def entrants(found: list[Candidate], count: int = 40) -> list[Entrant]:
    """With labels of their own, pageable."""
    return [Entrant(candidate, np.empty(count, np.uint8)) for candidate in found]


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest that still show an order."""
    for name, value in {"WARMUP": 1, "UNTIMED": 1, "LEAST_RUNS": 2, "MOST_RUNS": 3, "LEAST_SERIES": 1}.items():
        monkeypatch.setattr(peers_measure, name, value)
