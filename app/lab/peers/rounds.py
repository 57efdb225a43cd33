"""Measure engines in turn, in several rounds, and check the labels of every run.

All times are of the host's clock, because some frameworks accept no events on their streams. The time on the card is
that of several passes over resident images, enqueued back to back, from the first call until the device is idle,
divided by their number. The end-to-end time is that of one call on an idle device, from images in page-locked memory to
readable labels.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Protocol, cast

import numpy as np

from app.base.clock import time_call
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.lab.batch import UNWRITTEN, Batch
from app.main_job.statistics import median, summarise_samples
from app.network.graph import Graph
from app.records.peers import Row

OURS = "ours"
DENSE = "dense"  # setting of ours: 2:4 sparse weights run on dense kernels
LEAST_PASSES, PASSES, SERIES_MS = 2, 10, 20.0  # passes in one series: as many as take SERIES_MS, within these limits
WARMUP, UNTIMED = 4, 2  # untimed runs after an engine is made, and at the start of each round
TURN_MS = 60.0  # per engine, measurement and round
LEAST_RUNS, MOST_RUNS = 5, 300
LEAST_SERIES = 3  # series of passes per engine and round
TRIES = 9  # timed runs of each setting in a search
ON_CARD, END_TO_END = "on_card_ms", "end_to_end_ms"
MEASUREMENTS = (END_TO_END, ON_CARD)


class Engine(Protocol):
    """A system that is set up to classify one batch with one setting. note: remark on its times.

    arithmetic: number type in which it multiplies; the accuracy rule depends on it and judges no peer (None).
    """

    note: str = ""
    arithmetic: str | None = None

    def settings_context(self) -> AbstractContextManager[object]:
        """Return a context with the engine's global switches set; all other methods are called within it."""
        return nullcontext()

    def upload_images(self) -> None:
        """Copy the images to the card, and overwrite the last labels."""

    def enqueue(self) -> None:
        """Start one pass over the images on the card; the call may return before the pass ends."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def download_labels(self) -> np.ndarray:
        """Return a copy of the last pass's labels from the card: (N,) uint8."""

    def poison_buffers(self) -> None:
        """Overwrite the images, features and labels on the card that the next run writes."""

    def run(self) -> None:
        """Classify end to end; on return, the labels are readable in the host array given to the engine."""

    def close(self) -> None:
        """Free the engine's device memory."""


MakeEngine = Callable[[Graph, np.ndarray, np.ndarray], Engine]


class Candidate(Frozen):
    """An engine to make and measure. setting: name of a peer's setting; for this program empty or ``DENSE``.

    make: function that makes the engine from a graph, images (N, C, H, W) uint8 and the array for labels (N,) uint8,
    both page-locked.
    """

    engine: str
    setting: str
    precision: str
    make: MakeEngine

    @property
    def title(self) -> str:
        """Return engine, setting and precision: ``torch eager, contiguous fp16``."""
        return " ".join(filter(None, (self.engine, self.setting, self.precision)))


@dataclass
class Entrant:
    """A candidate that is being measured, and its results so far.

    labels: of the first timed run. unsteady: number of timed runs with other labels. reason: why it has no times.
    """

    candidate: Candidate
    host_labels: np.ndarray
    engine: Engine | None = None
    runs: int = LEAST_RUNS  # end to end, per round
    passes: int = 1  # per series
    note: str = ""
    reason: str = ""
    arithmetic: str | None = None
    samples: dict[str, list[float]] = field(default_factory=lambda: {ON_CARD: [], END_TO_END: []})
    labels: np.ndarray | None = None
    unsteady: int = 0

    @property
    def is_ours(self) -> bool:
        """Return whether the engine is this program's."""
        return self.candidate.engine == OURS

    def prepare(self, batch: Batch) -> None:
        """Make the engine and warm it up, which includes slow steps such as compiling. Sets ``reason`` if it fails."""
        self._attempt(partial(self._make_and_warm_up, batch))

    def run_round(self) -> None:
        """Time the engine for one round, unless it failed earlier. Sets ``reason`` if it fails now."""
        if self.engine is not None:
            self._attempt(self._time_round)

    def time_briefly(self, batch: Batch) -> list[float]:
        """Prepare the engine, time a few runs and close it; return the median ms on the card and end to end.

        If it fails, set ``reason`` and return [].
        """
        self.prepare(batch)
        took: list[float] = []
        if self.engine is not None:
            self._attempt(lambda: took.extend(self._time_few_runs()))
        self.close()
        return took

    def close(self) -> None:
        """Close the engine if there is one; ignore the errors of a peer."""
        engine, self.engine = self.engine, None
        with nullcontext() if self.is_ours else suppress(Exception):
            if engine is not None:
                engine.close()

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run the action. If it raises an error, close the engine, drop its labels and set ``reason``.

        A peer may fail in any way. An error of this program other than UserError is a bug and is raised.
        """
        try:
            action()
        except Exception as error:
            if self.is_ours and not isinstance(error, UserError):
                raise
            self.reason, self.labels = describe_error(error), None
            self.close()

    def _make_and_warm_up(self, batch: Batch) -> None:
        self.engine = self.candidate.make(batch.graph, batch.images, self.host_labels)
        self.note, self.arithmetic = self.engine.note, self.engine.arithmetic
        with self.engine.settings_context():
            for _ in range(WARMUP):
                last = {name: self._time_measurement(name) for name in MEASUREMENTS}
        self.runs = min(max(ceil(TURN_MS / max(last[END_TO_END], 1e-6)), LEAST_RUNS), MOST_RUNS)
        self.passes = min(max(ceil(SERIES_MS / max(last[ON_CARD], 1e-6)), LEAST_PASSES), PASSES)

    def _time_few_runs(self) -> list[float]:
        assert self.engine is not None
        with self.engine.settings_context():
            return [median([self._time_measurement(name) for _ in range(TRIES)]) for name in (ON_CARD, END_TO_END)]

    def _time_round(self) -> None:
        assert self.engine is not None
        with self.engine.settings_context():
            for name, runs in ((END_TO_END, self.runs), (ON_CARD, max(ceil(self.runs / self.passes), LEAST_SERIES))):
                for index in range(UNTIMED + runs):
                    ms = self._time_measurement(name)
                    labels = self.host_labels if name == END_TO_END else self.engine.download_labels()
                    if index >= UNTIMED:
                        self.samples[name].append(ms)
                        self.labels = labels.copy() if self.labels is None else self.labels
                        self.unsteady += not np.array_equal(labels, self.labels)

    def _time_measurement(self, measurement: str) -> float:
        engine = self.engine
        assert engine is not None
        if measurement == END_TO_END:
            engine.poison_buffers()
            self.host_labels.fill(UNWRITTEN)
            engine.synchronize()
            return time_call(engine.run)[1]
        engine.upload_images()
        engine.synchronize()

        def run_passes() -> None:
            for _ in range(self.passes):
                engine.enqueue()
            engine.synchronize()

        return time_call(run_passes)[1] / self.passes

    def result_row(self, batch: Batch) -> Row:
        """Return the engine's row for the JSON document, with times in ms; ``batch`` judges its labels."""
        row: dict[str, Any] = {
            **{name: getattr(self.candidate, name) for name in ("engine", "setting", "precision")},
            **{
                name: None if self.labels is None else summarise_samples(samples)
                for name, samples in self.samples.items()
            },
            **{name: getattr(self, name) for name in ("unsteady", "note", "reason")},
        }
        if self.labels is None:
            row |= {"correct": None, "changed": None, "largest_margin": None, "wrong": False}
        else:
            row |= batch.score(self.labels, self.arithmetic)
            row["wrong"] |= self.is_ours and self.unsteady > 0
        return cast(Row, row)


def measure_in_turn(
    entrants: Sequence[Entrant],
    batch: Batch,
    rounds: int,
    show_step: Callable[[str], object],
    check_after: Callable[[Entrant], object] = lambda _: None,
) -> None:
    """Prepare all entrants, time them in ``rounds`` rounds, each beginning with another entrant, and close them.

    show_step: called with a description before each preparation and each round. check_after: called with a peer that
    failed; raises an error if the card no longer answers.
    """

    def call_and_check(entrant: Entrant, what: str, turn: Callable[[], object]) -> None:
        show_step(entrant.candidate.title + what)
        turn()
        if entrant.reason and not entrant.is_ours:
            check_after(entrant)

    try:
        for entrant in entrants:
            call_and_check(entrant, "", partial(entrant.prepare, batch))
        for index in range(rounds):
            first = index % len(entrants)
            for entrant in [*entrants[first:], *entrants[:first]]:
                call_and_check(entrant, f", round {index + 1}", entrant.run_round)
    except BaseException:
        for entrant in entrants:
            with suppress(Exception):  # a card that no longer answers frees nothing; the first error says why
                entrant.close()
        raise
    for entrant in entrants:
        entrant.close()


def check_card_after(
    entrant: Entrant, checks: Sequence[Callable[[], object]], others: str, store: Callable[[], object] = lambda: None
) -> None:
    """Call the functions ``checks``. If one raises an error, call ``store`` and raise UserError: the card is unusable.

    entrant: the engine that ran last. others: what the command would time if it is run again, for the error's text.
    """
    try:
        for check in checks:
            check()
    except Exception as error:
        store()
        sys.unraisablehook = lambda _: None  # else each array that CuPy cannot free prints a traceback
        why = f"{entrant.candidate.title} left the card unusable ({describe_error(error)})"
        raise UserError(f"{why}; what it did is stored: run the command again to go on with {others}") from error


def describe_error(error: Exception) -> str:
    """Return an error's text in at most 160 characters, or its class if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
