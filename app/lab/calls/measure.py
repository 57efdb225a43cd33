"""Time one kind of call: check every caller, then time the callers in turn, in several rounds.

Successive calls get different arrays. The host's clock times each from the call to its return.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, NamedTuple, cast

import numpy as np

from app.base.clock import time_call
from app.base.errors import UserError
from app.lab.calls.callers import (
    CARD,
    COMPILE,
    EAGER,
    OURS,
    PINNED,
    Caller,
    Kind,
    TorchPool,
    image_indices,
    make_input_arrays,
    peer_precisions,
)
from app.lab.peers.rounds import describe_error
from app.main_job.statistics import median, speedup, summarise_samples
from app.records.calls import Call
from app.records.calls import Caller as CallerRow

WARMUP, TRIES = 5, 9  # untimed calls of a new caller; timed calls that choose between settings
UNTIMED = 5  # calls at the start of each round
TURN_MS, LEAST_CALLS, MOST_CALLS = 100.0, 20, 500  # calls per round: as many as take TURN_MS, within these limits
MOST_CHANGED = 0.01  # share of labels in which a peer may differ from the engine; with more, the peer is not timed

CallerFactories = Mapping[str, Callable[[], Caller]]


class Setup(NamedTuple):
    """Data that all kinds of calls share. images: (N, C, H, W) uint8 in pageable memory.

    labels: function that returns the main job's labels in a precision. ours: opens a ``Caller`` of ``Classifier``.
    pinned_copy, card_copy: functions that copy an array to page-locked memory, or into a PyTorch tensor on the card.
    synchronize: waits for the device, also for the end of a resident kernel.
    """

    images: np.ndarray
    labels: Callable[[str], np.ndarray]
    ours: Callable[[Kind], Caller]
    peers: TorchPool
    pinned_copy: Callable[[np.ndarray], Any]
    card_copy: Callable[[np.ndarray], Any]
    synchronize: Callable[[], object]


@dataclass
class Entrant:
    """An engine timed in one precision, and its results. factories: setting → function that makes its ``Caller``.

    tried_ms: median of the chosen setting. answers, changed: labels at the check, and how many are not the main job's.
    unsteady: number of timed calls whose labels differed from those of the check. reason: why there are no times.
    """

    engine: str
    precision: str
    factories: CallerFactories
    caller: Caller | None = None
    setting: str = ""
    tried_ms: float = 0.0
    answers: list[np.ndarray] = field(default_factory=list)  # at the check, to each array
    changed: int | None = None
    unsteady: int = 0
    reason: str = ""
    samples: list[float] = field(default_factory=list)

    def choose_fastest_setting(
        self, given: Sequence[Any], expected: Sequence[np.ndarray], show_step: Callable[[str], object]
    ) -> None:
        """Keep the fastest setting whose labels of the images ``given`` are ``expected`` (a peer's: nearly all)."""
        faults = []
        for setting, make in self.factories.items():
            show_step(f"{self.engine} {self.precision}: {setting}")
            try:
                self._try_setting(setting, make(), given, expected)
            except Exception as error:
                if self.engine == OURS and not isinstance(error, UserError):
                    raise
                faults.append(describe_error(error))
        if self.caller is None:
            self.reason = faults[0]

    def _try_setting(self, setting: str, caller: Caller, given: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
        with caller.settings_context():
            answers = [labels_on_host(caller.call(images)).copy() for images in given]
            changed = sum(int((found != right).sum()) for found, right in zip(answers, expected, strict=True))
            most = 0.0 if self.engine == OURS else MOST_CHANGED * sum(map(len, expected))
            if changed > most:
                caller.close()
                self.changed = changed
                raise UserError(f"{changed:,} labels are not the engine's")
            turns = [given[at % len(given)] for at in range(WARMUP + TRIES)]
            ms = median([time_call(partial(caller.call, images))[1] for images in turns][WARMUP:])
        if self.caller is None or ms < self.tried_ms:
            self.caller, self.setting, self.tried_ms = caller, setting, ms
            self.answers, self.changed = answers, changed

    def time_round(self, given: Sequence[Any], synchronize: Callable[[], object]) -> None:
        """Time one round of calls with the images ``given``; compare the labels, untimed, with those of the check."""
        if self.caller is None:
            return
        synchronize()
        calls = min(max(ceil(TURN_MS / max(self.tried_ms, 1e-6)), LEAST_CALLS), MOST_CALLS)
        with self.caller.settings_context():
            for at in range(UNTIMED + calls):
                images, answer = given[at % len(given)], self.answers[at % len(given)]
                found, ms = time_call(partial(self.caller.call, images))
                if at >= UNTIMED:
                    self.samples.append(ms)
                    self.unsteady += not np.array_equal(labels_on_host(found), answer)

    def result_record(self) -> CallerRow:
        """Return the record of this caller: times, setting, and numbers of labels that differ."""
        times = summarise_samples(self.samples) if self.samples else None
        if times is not None:
            del times["samples"]
        names = ("engine", "precision", "setting", "changed", "unsteady", "reason")
        return cast(CallerRow, {"ms": times, **{name: getattr(self, name) for name in names}})


def labels_on_host(labels: Any) -> np.ndarray:
    """Return labels of any framework as a NumPy array, (N,); wait for them if they are on the card."""
    found = labels if isinstance(labels, np.ndarray) else labels.get() if hasattr(labels, "get") else labels.cpu()
    return np.atleast_1d(np.asarray(found))


def measure_kind(kind: Kind, setup: Setup, rounds: int, show_step: Callable[[str], object]) -> Call:
    """Time one kind of call by every engine in ``rounds`` rounds. show_step: called with a description of each step."""
    entrants = [Entrant(OURS, kind.precision, {"": lambda: setup.ours(kind)})]
    for precision in peer_precisions(kind.precision):
        for engine in (EAGER, COMPILE):
            entrants.append(Entrant(engine, precision, setup.peers.caller_factories(kind, engine, precision)))
    try:
        copy_array = {CARD: setup.card_copy, PINNED: setup.pinned_copy}.get(kind.source, lambda array: array)
        given = make_input_arrays(kind, setup.images, copy_array)
        labels = setup.labels(kind.precision)
        expected = [labels[indices] for indices in image_indices(kind, len(setup.images))]
    except UserError as error:  # no PyTorch, or no kernels for the precision on this card
        for entrant in entrants:
            entrant.reason = str(error)
        return _call_record(kind, entrants)
    try:
        for entrant in entrants:
            setup.synchronize()  # a resident kernel may still run
            entrant.choose_fastest_setting(given, expected, lambda what: show_step(f"{kind.name}: {what}"))
        show_step(f"{kind.name}: {rounds} rounds")
        for at in range(rounds):
            first = at % len(entrants)
            for entrant in [*entrants[first:], *entrants[:first]]:
                entrant.time_round(given, setup.synchronize)
    finally:
        for entrant in entrants:
            if entrant.caller is not None:
                entrant.caller.close()
    return _call_record(kind, entrants)


def _call_record(kind: Kind, entrants: Sequence[Entrant]) -> Call:
    """Return the record of one kind of call: times of each caller, and the fastest peers' times ÷ ours."""
    ours, *peers = entrants
    our_ms = median(ours.samples) if ours.samples else None
    medians = {(peer.engine, peer.precision): median(peer.samples) for peer in peers if peer.samples}
    same, *others = peer_precisions(kind.precision)
    best, ratio = _fastest_peer(medians, same, our_ms)
    return {
        "name": kind.name,
        "what": kind.description,
        "images": kind.images,
        "precision": kind.precision,
        "callers": [entrant.result_record() for entrant in entrants],
        "best": best,
        "ratio": ratio,
        "tf32_ratio": _fastest_peer(medians, others[0], our_ms)[1] if others else None,
        "wrong": bool(ours.unsteady or ours.changed),
    }


def _fastest_peer(
    medians: Mapping[tuple[str, str], float], precision: str, our_ms: float | None
) -> tuple[str | None, float | None]:
    """Return the fastest peer in a precision, and its time ÷ ours; None if missing. medians: (peer, precision) → ms."""
    times = {engine: ms for (engine, other), ms in medians.items() if other == precision}
    best = min(times, key=times.__getitem__, default=None)
    return best, None if best is None else speedup(times[best], our_ms)
