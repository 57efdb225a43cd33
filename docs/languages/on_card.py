"""Judge and time each language's kernel on the card, beside our step with the same tile and our fastest kernel."""

import os
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import cupy
import numpy as np

from app.base.clock import Timer
from app.kernels import registry
from app.kernels.problems import ConvProblem
from app.kernels.variant import Variant
from app.lab.bench.compiling import WrongResult
from app.lab.bench.trial import Trial
from app.lab.peers.rounds import describe_error
from app.main_job.result import Timing
from app.main_job.statistics import has_enough_samples
from app.planning.tuning import Tuning
from app.records.languages import Row
from docs.languages.compare import PROBLEM, TILE, Language, empty_row, our_step

BATCHES = (1, 7, 253)  # judged before the batch that is timed; the oracle's block of images divides none but 1 and 7
NOISE, L2 = 0.01, "cold"
ACTIONS = 10  # so many launches of ours take the host at least as long as one of a language
TENSOR_CORES = ("mma", "wgmma")  # kernels without them are never the fastest, and the naive ones take a second a run
ROUNDS, CALLS = 50, 50  # of launches for one image
PASSES = 10  # back to back in one sample of the host's clock


def measure_rows(languages: Sequence[Language], images: int, arch: str, known: Tuning) -> Iterator[Row]:
    """Yield the rows of our step, of our fastest kernel and of the languages for a batch of ``images`` images."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others need device memory, too
    trials = [Trial(PROBLEM, count, arch) for count in (*BATCHES, images)]
    yield _time_ours(our_step(), TILE, trials)
    rows = [row for row in registry.variants("conv") if row.instructions in TENSOR_CORES]
    rows = [row for row in rows if not row.refusal_reason(PROBLEM, arch)]
    ours = [_time_ours(row, known.parameters(PROBLEM, row, arch), trials) for row in rows]
    yield min((row for row in ours if row["ms"]), key=lambda row: row["ms"] or 0.0)
    for language in languages:
        yield language.row() if language.missing else _time_language(language, trials)


def _time_ours(row: Variant, parameters: dict[str, int], trials: list[Trial]) -> Row:
    """Return the row of one of our kernels. trials: of all batches; the last one is timed, the first has one image."""
    found = empty_row(f"CUDA C++, {row.name}", row.path)
    try:
        launches = [trial.bind_variant(row, parameters) for trial in trials]
        found["error"] = max(trial.check_outputs(launch) for trial, launch in zip(trials, launches, strict=True))
        timing = trials[-1].time_launch(launches[-1], NOISE, L2)
    except Exception as failure:  # of one kernel alone: the others are measured
        found["wrong"], found["reason"] = isinstance(failure, WrongResult), describe_error(failure)
        return found
    found["ms"], found["spread_ms"] = timing.median, timing.spread
    stream = trials[0].clock.stream
    found["launch_us"] = _time_launches(lambda: launches[0](stream.ptr, 1), stream.synchronize)
    return found


def _time_language(language: Language, trials: list[Trial]) -> Row:
    """Return a language's row. trials: as for ``_time_ours``."""
    try:
        error = max(trial.check_action(_runner(language, trial)) for trial in trials)
        enqueue, wait, _ = _bind(language, trials[-1])
        if language.own_stream:
            timing = _time_passes(enqueue, wait)
        else:
            timing = trials[-1].clock.time_enqueued_work(enqueue, NOISE, L2, ACTIONS)
        enqueue, wait, _ = _bind(language, trials[0])
        launch_us = _time_launches(enqueue, wait)
    except Exception as failure:  # each language fails in its own way
        return language.row(wrong=isinstance(failure, WrongResult), reason=describe_error(failure))
    return language.row(
        ms=timing.median,
        spread_ms=timing.spread,
        clock="host" if language.own_stream else "events",
        launch_us=launch_us,
        error=error,
    )


def _runner(language: Language, trial: Trial) -> Callable[[], None]:
    """Return a function that computes the trial's outputs once."""

    def run() -> None:
        enqueue, wait, read = _bind(language, trial)
        enqueue()
        wait()
        if isinstance(found := read(), np.ndarray):  # else it is the trial's array
            trial.outputs["y"].set(found.reshape(-1))

    return run


def _bind(language: Language, trial: Trial) -> Any:
    """Return the language's functions for the trial's arrays, once these have what was enqueued before."""
    assert isinstance(trial.problem, ConvProblem)
    problem, images = trial.problem, trial.images
    trial.clock.stream.synchronize()
    x = trial.x.reshape(images, problem.channels, problem.height, problem.width)
    y = trial.outputs["y"].reshape(images, problem.maps, *problem.pooled_size)
    w = cupy.asarray(trial.parameters[0])
    return language.bind(x, w, y, trial.clock.stream)


def _time_passes(enqueue: Callable[[], object], wait: Callable[[], object]) -> Timing:
    """Return times in ms of one pass by the host's clock: ``PASSES`` are enqueued, from the first call to the end."""
    samples: list[float] = []
    while not has_enough_samples(samples, NOISE):
        wait()
        timer = Timer()
        for _ in range(PASSES):
            enqueue()
        wait()
        samples.append(timer.seconds * 1e3 / PASSES)
    return Timing(tuple(samples))


def _time_launches(enqueue: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the median host time in µs of a call that enqueues little work; the host waits between rounds."""
    enqueue()
    samples = []
    for _ in range(ROUNDS):
        wait()
        timer = Timer()
        for _ in range(CALLS):
            enqueue()
        samples.append(timer.seconds * 1e6 / CALLS)
    return median(samples)
