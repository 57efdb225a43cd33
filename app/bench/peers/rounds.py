"""Measure engines side by side: in turn, round after round, every output checked.

The clock is the host's for all engines, since some frameworks do not let events into their streams. On the card:
several passes over resident images are enqueued back to back, timed from the first call until the device is idle, and
divided. End to end: one call from images in page-locked memory to readable labels, with the device idle before it.

A framework has several ways to run the same network. Each is tried for a moment. The fastest one for each of the two
measurements enters the rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from app.bench.batch import UNWRITTEN, Batch
from app.errors import UserError
from app.network.graph import Graph
from app.runtime.clock import clocked
from app.runtime.statistics import median, summary

PASSES = 10
WARMUP, UNTIMED = 5, 2  # untimed runs after an engine is made, and at the start of each turn
TURN_MS = 60.0  # per measurement and turn
LEAST_RUNS, MOST_RUNS = 10, 300
LEAST_SERIES = 5  # series of passes per turn
TRIES = 5  # timed runs that choose between settings
ON_CARD, END_TO_END = "on_card_ms", "end_to_end_ms"
MEASUREMENTS = (END_TO_END, ON_CARD)


class Engine(Protocol):
    """One way to classify one batch. note: a remark on its times for readers.

    arithmetic: the type of the multiplication, if the accuracy check judges the engine; None for a peer.
    """

    note: str = ""
    arithmetic: str | None = None

    def active(self) -> AbstractContextManager[object]:
        """Set the engine's global switches; all other methods are called within this context."""
        return nullcontext()

    def load(self) -> None:
        """Put the images on the card, and overwrite the last labels."""

    def enqueue(self) -> None:
        """Start one pass over the images on the card; may return at once."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def card_labels(self) -> np.ndarray:
        """Return a copy of the labels that the last pass left on the card: (N,) uint8."""

    def wipe(self) -> None:
        """Overwrite images, features and labels on the card where the next run will write them again."""

    def run(self) -> None:
        """Classify end to end: on return, the labels are readable in the array given to the engine."""

    def close(self) -> None:
        """Free the device memory."""


Make = Callable[[Graph, np.ndarray, np.ndarray], Engine]


@dataclass(frozen=True)
class Candidate:
    """An engine that is not made yet.

    makes: setting → function that makes the engine from a graph, images (N, C, H, W) uint8 and labels (N,) uint8 to
    write to, both page-locked. The fastest setting is measured; the others may fail.
    """

    engine: str
    precision: str
    ours: bool
    makes: Mapping[str, Make]


@dataclass
class Entrant:
    """A candidate and its results.

    settings: measurement → fastest setting. tried: setting → its times in a few runs, or why it did not run. labels:
    setting → labels of its first timed run. unsteady: number of timed runs with other labels.
    """

    candidate: Candidate
    host_labels: np.ndarray
    engines: dict[str, Engine] = field(default_factory=dict)  # setting → labels
    settings: dict[str, str] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    runs: int = LEAST_RUNS
    note: str = ""
    reason: str = ""
    arithmetic: str | None = None
    samples: dict[str, list[float]] = field(default_factory=lambda: {ON_CARD: [], END_TO_END: []})
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    unsteady: int = 0

    def start(self, batch: Batch) -> None:
        """Make the engines, warm them up and keep the fastest. Slow steps such as compiling happen here."""
        for setting, make in self.candidate.makes.items():
            reason = self._guarded(partial(self._try, setting, make, batch))
            if reason:
                self.tried.append({"setting": setting, ON_CARD: None, END_TO_END: None, "reason": reason})
                self._drop(setting)
        if not self.settings:
            self.reason = self.tried[0]["reason"]

    def turn(self) -> None:
        """Run one round, if any engine is left."""
        if self.engines:
            self.reason = self._guarded(self._turn)
            if self.reason:
                self.labels = {}
                self.close()

    def close(self) -> None:
        """Free the engines, if there are any."""
        for setting in list(self.engines):
            self._drop(setting)

    def _drop(self, setting: str) -> None:
        if setting in self.engines:
            self.engines.pop(setting).close()

    def _try(self, setting: str, make: Make, batch: Batch) -> None:
        """Time the setting in a few runs, and close the engines that are the fastest in neither measurement."""
        self.engines[setting] = engine = make(batch.graph, batch.images, self.host_labels)
        with engine.active():
            for _ in range(WARMUP):
                for measurement in MEASUREMENTS:
                    self._timed(engine, measurement)
            took = {name: median([self._timed(engine, name) for _ in range(TRIES)]) for name in MEASUREMENTS}
        self.tried.append({"setting": setting, **took, "reason": ""})
        ran = [known for known in self.tried if not known["reason"]]
        fastest = {name: min(ran, key=itemgetter(name)) for name in MEASUREMENTS}
        self.settings = {name: known["setting"] for name, known in fastest.items()}
        for other in [known for known in self.engines if known not in self.settings.values()]:
            self._drop(other)
        kept = self.engines[self.settings[END_TO_END]]
        self.note, self.arithmetic = kept.note, kept.arithmetic
        self.runs = min(max(ceil(TURN_MS / fastest[END_TO_END][END_TO_END]), LEAST_RUNS), MOST_RUNS)

    def _turn(self) -> None:
        for measurement, runs in ((END_TO_END, self.runs), (ON_CARD, max(ceil(self.runs / PASSES), LEAST_SERIES))):
            setting = self.settings[measurement]
            engine = self.engines[setting]
            with engine.active():
                for index in range(UNTIMED + runs):
                    ms = self._timed(engine, measurement)
                    labels = self.host_labels if measurement == END_TO_END else engine.card_labels()
                    if index >= UNTIMED:
                        self.samples[measurement].append(ms)
                        first = self.labels.setdefault(setting, labels.copy())
                        self.unsteady += not np.array_equal(labels, first)

    def _timed(self, engine: Engine, measurement: str) -> float:
        if measurement == END_TO_END:
            engine.wipe()
            self.host_labels.fill(UNWRITTEN)
            engine.synchronize()
            return clocked(engine.run)[1]
        engine.load()
        engine.synchronize()

        def passes() -> None:
            for _ in range(PASSES):
                engine.enqueue()
            engine.synchronize()

        return clocked(passes)[1] / PASSES

    def _guarded(self, action: Callable[[], None]) -> str:
        """Return why the action failed, empty if it did not. A peer may fail in any way; an error of ours that is no
        UserError is a bug."""
        try:
            action()
        except Exception as error:
            if self.candidate.ours and not isinstance(error, UserError):
                raise
            return one_line(error)
        return ""

    def row(self, batch: Batch) -> dict[str, Any]:
        """Return the row of the document: times in ms; of two settings' labels, those with more differences."""
        row: dict[str, Any] = {
            **{name: getattr(self.candidate, name) for name in ("engine", "precision", "ours")},
            **{name: summary(samples) if self.labels else None for name, samples in self.samples.items()},
            **{name: getattr(self, name) for name in ("settings", "tried", "unsteady", "note", "reason")},
        }
        if not self.labels:
            return row | {"correct": None, "changed": None, "largest_margin": None, "wrong": False}
        scores = [batch.score(labels, self.arithmetic) for labels in self.labels.values()]
        row |= max(scores, key=lambda score: score["changed"])
        row["wrong"] |= self.candidate.ours and self.unsteady > 0
        return row


def in_turn(entrants: Sequence[Entrant], batch: Batch, rounds: int, step: Callable[[], object]) -> None:
    """Start all entrants, then run ``rounds`` rounds; another one begins each. step: called after start and turn."""
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
    """Describe an error in at most 160 characters; by its class if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
