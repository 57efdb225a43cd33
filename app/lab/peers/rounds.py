"""Measure engines side by side: in turn, round after round, every output checked.

The clock is the host's for all engines, since some frameworks do not accept events on their streams. On the card:
several passes over resident images are enqueued back to back, timed from the first call until the device is idle, and
divided by their number. End to end: one call from images in page-locked memory to readable labels, with the device idle
before it.

A framework has several ways to run the same network. Each is tried briefly. The fastest one for each of the two
measurements enters the rounds. The time for trials may be limited: see ``measure_in_turn``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from operator import itemgetter
from typing import Any, Protocol, cast

import numpy as np

from app.base.clock import Timer, time_call
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.lab.batch import UNWRITTEN, Batch
from app.main_job.statistics import median, summarise_samples
from app.network.graph import Graph
from app.records.peers import Row

LEAST_PASSES, PASSES, SERIES_MS = 2, 10, 20.0  # passes in one series: as many as take SERIES_MS, within these limits
WARMUP, UNTIMED = 4, 2  # untimed runs after an engine is made, and at the start of each turn
TURN_MS = 60.0  # per measurement and turn
LEAST_RUNS, MOST_RUNS = 5, 300
LEAST_SERIES = 3  # series of passes per turn
TRIES = 5  # timed runs that choose between settings
ON_CARD, END_TO_END = "on_card_ms", "end_to_end_ms"
MEASUREMENTS = (END_TO_END, ON_CARD)


class Engine(Protocol):
    """A system set up to classify one batch in one way. note: a remark on its times for readers.

    arithmetic: the type of the multiplication if the accuracy rule judges the engine; None for a peer.
    """

    note: str = ""
    arithmetic: str | None = None

    def settings_context(self) -> AbstractContextManager[object]:
        """Return a context with the engine's global switches set; all other methods are called within it."""
        return nullcontext()

    def upload_images(self) -> None:
        """Copy the images to the card and overwrite the last labels."""

    def enqueue(self) -> None:
        """Start one pass over the images on the card; may return before it ends."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def card_labels(self) -> np.ndarray:
        """Return a copy of the last pass's labels from the card: (N,) uint8."""

    def poison_buffers(self) -> None:
        """Overwrite the images, features and labels on the card that the next run writes."""

    def run(self) -> None:
        """Classify end to end; on return, the labels are readable in the host array given to the engine."""

    def close(self) -> None:
        """Free the device memory."""


Make = Callable[[Graph, np.ndarray, np.ndarray], Engine]


class Candidate(Frozen):
    """An engine to be made and measured.

    makes: setting → function that makes the engine from a graph, images (N, C, H, W) uint8 and labels (N,) uint8 to
    write to, both page-locked. The fastest setting is measured; the others may fail. like: for an engine that is slow
    to make, the name of a quick engine that decides in which order settings are tried. likes: setting → the quick
    engine's similar setting.
    """

    engine: str
    precision: str
    ours: bool
    makes: Mapping[str, Make]
    like: str = ""
    likes: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Entrant:
    """A candidate, that is a system to be measured, and its results so far.

    waiting: settings that were not tried yet. settings: measurement → fastest setting. tried: each setting's times in a
    few runs, or why it did not run. labels: setting → labels of its first timed run. unsteady: number of timed runs
    whose labels differ from those.
    """

    candidate: Candidate
    host_labels: np.ndarray
    waiting: list[str] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)  # by setting
    settings: dict[str, str] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    runs: int = LEAST_RUNS  # end to end, per turn
    passes: int = 1  # per series
    note: str = ""
    reason: str = ""
    arithmetic: str | None = None
    samples: dict[str, list[float]] = field(default_factory=lambda: {ON_CARD: [], END_TO_END: []})
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    unsteady: int = 0

    def __post_init__(self) -> None:
        self.waiting = list(self.candidate.makes)

    @property
    def title(self) -> str:
        """The candidate's name: ``torch-eager fp16``."""
        return f"{self.candidate.engine} {self.candidate.precision}"

    def sort_settings(self, tried: Sequence["Entrant"]) -> None:
        """Sort the waiting settings by the times of the similar engine's settings."""
        own, times = self.candidate, dict[str, float]()
        for other in tried:
            if (other.candidate.engine, other.candidate.precision) == (own.like, own.precision):
                times = {known["setting"]: known[ON_CARD] for known in other.tried if not known["reason"]}
        self.waiting.sort(key=lambda setting: times.get(own.likes.get(setting, ""), inf))

    def try_next_setting(self, batch: Batch, late: str = "") -> None:
        """Make the next setting's engine, warm it up and time it briefly; slow steps such as compiling happen here.

        late: the reason to skip the setting; empty to try it.
        """
        setting = self.waiting.pop(0)
        reason = late or self._failure_of(partial(self._try_setting, setting, batch))
        if reason:
            self.tried.append({"setting": setting, ON_CARD: None, END_TO_END: None, "reason": reason})
            self._close_engine(setting)
        self.reason = "" if self.settings else self.tried[0]["reason"]

    def run_round(self) -> None:
        """Run the timed runs of one round, if any engine is left."""
        if self.engines:
            self.reason = self._failure_of(self._run_timed_turn)
            if self.reason:
                self.labels = {}
                self.close()

    def close(self) -> None:
        """Close all engines."""
        for setting in list(self.engines):
            self._close_engine(setting)

    def _close_engine(self, setting: str) -> None:
        if setting in self.engines:
            self.engines.pop(setting).close()

    def _try_setting(self, setting: str, batch: Batch) -> None:
        """Time the setting in a few runs, then close the engines that are fastest in neither measurement."""
        self.engines[setting] = engine = self.candidate.makes[setting](batch.graph, batch.images, self.host_labels)
        self.passes = 1
        with engine.settings_context():
            for _ in range(WARMUP):
                last = {name: self._time_measurement(engine, name) for name in MEASUREMENTS}
            self.passes = _pass_count(last[ON_CARD])
            took = {name: median([self._time_measurement(engine, name) for _ in range(TRIES)]) for name in MEASUREMENTS}
        self.tried.append({"setting": setting, **took, "reason": ""})
        ran = [known for known in self.tried if not known["reason"]]
        fastest = {name: min(ran, key=itemgetter(name)) for name in MEASUREMENTS}
        self.settings = {name: known["setting"] for name, known in fastest.items()}
        for other in [known for known in self.engines if known not in self.settings.values()]:
            self._close_engine(other)
        kept = self.engines[self.settings[END_TO_END]]
        self.note, self.arithmetic = kept.note, kept.arithmetic
        self.runs = min(max(ceil(TURN_MS / fastest[END_TO_END][END_TO_END]), LEAST_RUNS), MOST_RUNS)
        self.passes = _pass_count(fastest[ON_CARD][ON_CARD])

    def _run_timed_turn(self) -> None:
        for measurement, runs in ((END_TO_END, self.runs), (ON_CARD, max(ceil(self.runs / self.passes), LEAST_SERIES))):
            setting = self.settings[measurement]
            engine = self.engines[setting]
            with engine.settings_context():
                for index in range(UNTIMED + runs):
                    ms = self._time_measurement(engine, measurement)
                    labels = self.host_labels if measurement == END_TO_END else engine.card_labels()
                    if index >= UNTIMED:
                        self.samples[measurement].append(ms)
                        first = self.labels.setdefault(setting, labels.copy())
                        self.unsteady += not np.array_equal(labels, first)

    def _time_measurement(self, engine: Engine, measurement: str) -> float:
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

    def _failure_of(self, action: Callable[[], None]) -> str:
        """Run the action; return why it failed, or an empty text.

        A peer may fail in any way. An error of ours that is no UserError is a bug and is raised.
        """
        try:
            action()
        except Exception as error:
            if self.candidate.ours and not isinstance(error, UserError):
                raise
            return one_line(error)
        return ""

    def result_row(self, batch: Batch) -> Row:
        """Return the document's row: times in ms; of two settings' labels, those with more wrong ones."""
        row: dict[str, Any] = {
            **{name: getattr(self.candidate, name) for name in ("engine", "precision", "ours")},
            **{name: summarise_samples(samples) if self.labels else None for name, samples in self.samples.items()},
            **{name: getattr(self, name) for name in ("settings", "tried", "unsteady", "note", "reason")},
        }
        if not self.labels:
            row |= {"correct": None, "changed": None, "largest_margin": None, "wrong": False}
            return cast(Row, row)
        scores = [batch.score(labels, self.arithmetic) for labels in self.labels.values()]
        row |= max(scores, key=lambda score: score["changed"])
        row["wrong"] |= self.candidate.ours and self.unsteady > 0
        return cast(Row, row)


def measure_in_turn(
    entrants: Sequence[Entrant], batch: Batch, rounds: int, step: Callable[[str], object], seconds: float = inf
) -> None:
    """Try the settings of all entrants, then run ``rounds`` rounds, each starting with another entrant.

    step: called with a description before each trial and each turn. seconds: the time for trials of engines that are
    slow to make. After it only their first setting is tried, after twice the time none.
    """
    timer, late = Timer(), f"not tried: {seconds:g} s of trials were over"
    alike = [entrant for entrant in entrants if entrant.candidate.like]
    try:
        for group in ([entrant for entrant in entrants if entrant not in alike], alike):
            for entrant in group:
                entrant.sort_settings(entrants)
            while waiting := [entrant for entrant in group if entrant.waiting]:
                for entrant in waiting:
                    step(f"{entrant.title}: {entrant.waiting[0]}")
                    most = seconds if entrant.tried else 2 * seconds
                    is_late = bool(entrant.candidate.like) and timer.seconds > most
                    entrant.try_next_setting(batch, late if is_late else "")
        for index in range(rounds):
            first = index % len(entrants)
            for entrant in [*entrants[first:], *entrants[:first]]:
                step(f"{entrant.title}, round {index + 1}")
                entrant.run_round()
    finally:
        for entrant in entrants:
            entrant.close()


def _pass_count(ms: float) -> int:
    """Return how many passes of ``ms`` each to enqueue back to back and time together."""
    return min(max(ceil(SERIES_MS / max(ms, 1e-6)), LEAST_PASSES), PASSES)


def one_line(error: Exception) -> str:
    """Describe an error in at most 160 characters; by its class if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
