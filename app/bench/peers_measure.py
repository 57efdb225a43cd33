"""How engines are measured side by side: in turn, round after round, every output checked.

The clock is the host's for all, since not every framework lets events into its streams. On the card: several passes
over resident images are enqueued back to back, timed from the first call until the device is idle, and divided. End
to end: one call from images in page-locked memory to readable labels, the device idle before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from app.bench.batch import UNWRITTEN, Batch
from app.bench.quantiles import summary
from app.errors import UserError
from app.graph import Graph

PASSES = 10
WARMUP, UNTIMED = 5, 2  # runs after an engine is made, and at the start of its every turn
TURN_MS = 60.0  # of each measurement in each turn
LEAST_RUNS, MOST_RUNS = 10, 300
LEAST_SERIES = 5  # of passes, in each turn


class Engine(Protocol):
    """One way to classify one batch. note: what a reader of its times must know.

    arithmetic: what numbers are multiplied in, for an engine that the accuracy check judges; None for a peer.
    """

    note: str
    arithmetic: str | None

    def active(self) -> AbstractContextManager[object]:
        """The engine's global switches are set within; around everything below."""

    def load(self) -> None:
        """Put the images on the card, and rubbish where labels will be."""

    def enqueue(self) -> None:
        """One pass over the images on the card; may return at once."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def card_labels(self) -> np.ndarray:
        """The labels that the last pass left on the card: (N,) uint8."""

    def wipe(self) -> None:
        """Put rubbish where images, features and labels will be on the card, where their memory is used again."""

    def run(self) -> None:
        """End to end: when this returns, the labels are readable in the array that the engine was made with."""

    def close(self) -> None:
        """Give the device memory back."""


@dataclass(frozen=True)
class Candidate:
    """An engine to be made from a graph, images (N, C, H, W) uint8 and labels (N,) uint8 to write to, page-locked."""

    engine: str
    precision: str
    ours: bool
    make: Callable[[Graph, np.ndarray, np.ndarray], Engine]


@dataclass
class Entrant:
    """A candidate and what came of it. labels: of the first timed run; unsteady: timed runs that gave others."""

    candidate: Candidate
    host_labels: np.ndarray
    engine: Engine | None = None
    runs: int = LEAST_RUNS
    note: str = ""
    reason: str = ""
    arithmetic: str | None = None
    on_card: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    labels: np.ndarray | None = None
    unsteady: int = 0

    def start(self, batch: Batch) -> None:
        """Make the engine and warm it up; what takes long, such as compiling, happens here."""
        self._guarded(lambda: self._start(batch))

    def turn(self) -> None:
        """Its share of a round, if it runs at all."""
        if self.engine is not None:
            self._guarded(self._turn)

    def close(self) -> None:
        """Free the engine, if there is one."""
        if self.engine is not None:
            self.engine.close()
        self.engine = None

    def _start(self, batch: Batch) -> None:
        self.engine = engine = self.candidate.make(batch.graph, batch.images, self.host_labels)
        self.note, self.arithmetic = engine.note, engine.arithmetic
        with engine.active():
            for _ in range(WARMUP):
                ms = self._end_to_end(engine)
                self._on_card(engine)
        self.runs = min(max(ceil(TURN_MS / ms), LEAST_RUNS), MOST_RUNS)

    def _turn(self) -> None:
        engine = self.engine
        assert engine is not None
        with engine.active():
            for index in range(UNTIMED + self.runs):
                ms = self._end_to_end(engine)
                self._keep(self.end_to_end, ms, self.host_labels, timed=index >= UNTIMED)
            for index in range(UNTIMED + max(ceil(self.runs / PASSES), LEAST_SERIES)):
                ms = self._on_card(engine)
                self._keep(self.on_card, ms, engine.card_labels(), timed=index >= UNTIMED)

    def _end_to_end(self, engine: Engine) -> float:
        engine.wipe()
        self.host_labels.fill(UNWRITTEN)
        engine.synchronize()
        start = perf_counter()
        engine.run()
        return (perf_counter() - start) * 1e3

    def _on_card(self, engine: Engine) -> float:
        engine.load()
        engine.synchronize()
        start = perf_counter()
        for _ in range(PASSES):
            engine.enqueue()
        engine.synchronize()
        return (perf_counter() - start) * 1e3 / PASSES

    def _keep(self, samples: list[float], ms: float, labels: np.ndarray, *, timed: bool) -> None:
        if not timed:
            return
        samples.append(ms)
        if self.labels is None:
            self.labels = labels.copy()
        self.unsteady += not np.array_equal(labels, self.labels)

    def _guarded(self, action: Callable[[], None]) -> None:
        """A peer that fails, in whatever way its framework fails, is a row that says so; a fault of ours is a fault."""
        try:
            action()
        except Exception as error:
            if self.candidate.ours and not isinstance(error, UserError):
                raise
            self.reason = one_line(error)
            self.labels = None
            self.close()

    def row(self, batch: Batch) -> dict[str, Any]:
        """The entrant in the document. All times in ms."""
        timed = self.labels is not None
        row: dict[str, Any] = {
            "engine": self.candidate.engine,
            "precision": self.candidate.precision,
            "ours": self.candidate.ours,
            "on_card_ms": summary(self.on_card) if timed else None,
            "end_to_end_ms": summary(self.end_to_end) if timed else None,
            "unsteady": self.unsteady,
            "note": self.note,
            "reason": self.reason,
        }
        if self.labels is None:
            return row | {"correct": None, "changed": None, "largest_margin": None, "wrong": False}
        row |= batch.score(self.labels, self.arithmetic)
        row["wrong"] |= self.candidate.ours and self.unsteady > 0
        return row


def in_turn(entrants: Sequence[Entrant], batch: Batch, rounds: int, step: Callable[[], object]) -> None:
    """Start them all, then ``rounds`` rounds, each begun by another. step: called after each start and each turn."""
    try:
        for entrant in entrants:
            entrant.start(batch)
            step()
        for index in range(rounds):
            first = index % len(entrants)
            for entrant in [*entrants[first:], *entrants[:first]]:
                entrant.turn()
                step()
    finally:
        for entrant in entrants:
            entrant.close()


def one_line(error: Exception) -> str:
    """What went wrong, short enough for a table; a class's name where it gave no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
