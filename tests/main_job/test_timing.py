"""Test clocks, start-up times, imports that cost time, statistics of samples, and samples of two levels."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base import clock
from app.base.clock import Deadline, Stopwatch, Timer, time_by_host_clock, time_call
from app.engine.onnx_runtime import OnnxEngine
from app.engine.opening import cpu_engine_class
from app.main_job.report import startup_ms_beyond_cupy
from app.main_job.result import ComparedRun, Outcome, Timing, bimodality_warnings, layer_row
from app.main_job.statistics import (
    confidence_half_width,
    median,
    nearest_rank,
    speedup,
    split_two_modes,
    summarise_samples,
)
from tests.support.schemas import mistakes
from tests.support.shell import listing, shell, write_good_files
from tests.test_report import CPU, GPU, report


def test_times_by_the_host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def take_two_ms() -> str:
        now[0] += 0.002
        return "result"

    monkeypatch.setattr("app.base.clock.now", lambda: now[0])
    assert time_call(take_two_ms) == ("result", pytest.approx(2.0))
    assert time_by_host_clock(take_two_ms, 3, warmup=2) == pytest.approx((2.0,) * 3)
    assert now[0] == pytest.approx(6 * 0.002)


def test_timers_and_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("app.base.clock.now", lambda: now[0])
    timer, deadline, never = Timer(), Deadline(3.0), Deadline(inf)
    laps = []
    for now[0] in (11.0, 12.5):
        laps.append(timer.lap())
    assert laps == [1.0, 1.5] and timer.seconds == 2.5
    assert (deadline.seconds_left, deadline.is_over) == (0.5, False)
    deadline.extend(9.0, most=2.0)
    assert deadline.seconds_left == 2.0
    now[0] = 14.5
    assert (deadline.seconds_left, deadline.is_over) == (0.0, True)
    assert (never.seconds_left, never.is_over) == (inf, False)


def test_events_are_recorded_around_what_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.cuda import events

    calls: list[tuple[str, Any]] = []

    class FakeEvent:
        def record(self, stream: str) -> None:
            calls.append(("record", stream))

        def synchronize(self) -> None:
            calls.append(("wait", self))

    fake = SimpleNamespace(Event=FakeEvent, get_elapsed_time=lambda first, last: (first, last))
    monkeypatch.setattr(events, "cupy", SimpleNamespace(cuda=fake))
    pair: Any = events.EventPair()
    pair.record_around(lambda: calls.append(("enqueue", None)), "stream")
    assert calls == [("record", "stream"), ("enqueue", None), ("record", "stream")]
    pair.synchronize()
    before, after = pair.ms
    assert before is not after and calls[-1] == ("wait", after)


def test_laps_add_up() -> None:
    watch = Stopwatch()
    assert watch.spent == {}  # only main.py has an earlier start
    for name in ("one", "other", "one"):
        time.sleep(0.01)
        watch.lap(name)
    assert list(watch.spent) == ["one", "other"]
    assert watch.spent["one"] >= 20 and watch.spent["other"] >= 10
    assert sum(watch.spent.values()) <= watch.elapsed < sum(watch.spent.values()) + 1000


def test_stopwatch_starts_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(STARTED=time.perf_counter() - 0.2))
    monkeypatch.setattr(clock, "_process_age", lambda: 0.5)
    watch = Stopwatch()
    assert watch.spent == pytest.approx({"start": 300, "import": 200}, abs=50)
    assert watch.elapsed >= 500
    monkeypatch.setattr(clock, "_process_age", lambda: 0.0)  # the system does not give it
    assert Stopwatch().spent["start"] == 0


def test_start_up_beyond_cupy() -> None:
    spent = {"start": 1, "import": 2, "numpy": 4, "cupy": 8, "context": 16, "nvrtc": 32, "kernels": 64}
    assert startup_ms_beyond_cupy(spent) == 1 + 2 + 32 + 64


def test_one_off_times_of_a_whole_process(tmp_path: Path) -> None:
    """The report is all of standard output, and its one-off times together are less than the command took."""
    write_good_files(tmp_path)
    files = listing(tmp_path)
    arguments = ("--device", "cpu", "--weights", "weights.h5", "--data", "images", "--labels", "none", "--json", "-")
    before = time.perf_counter()
    done = shell(*arguments, cwd=tmp_path)
    took = (time.perf_counter() - before) * 1e3
    assert (done.returncode, done.stderr) == (0, "") and listing(tmp_path) == files
    report = json.loads(done.stdout)
    engine = ["engine"] if cpu_engine_class() is OnnxEngine else []
    assert list(report["one_off_ms"]) == ["start", "import", "numpy", "weights", "context", "data", *engine]
    assert all(ms >= 0 for ms in report["one_off_ms"].values())
    assert 0 < report["once_own_ms"] < report["once_ms"] < report["command_ms"] < took + 50
    assert not mistakes(report)


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("graph", "--help")])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    done = shell(*command, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "app.cli" in loaded and not loaded & {"numpy", "cupy", "h5py", "tqdm", "requests"}


def test_a_picture_is_classified_without_other_formats_and_processes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "one.png")
    done = shell("predict", str(tmp_path / "one.png"), "--device", "cpu", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0, done.stderr
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "numpy" in loaded and not loaded & {"cupy", "tqdm", "app.interchange.npz", "app.files.child_process"}


def test_importing_the_main_job_loads_nothing_that_few_runs_need() -> None:
    heavy = {"tqdm", "requests", "cupy", "app.records"}
    code = f"import sys, app.main_job.job; sys.exit(bool({heavy} & set(sys.modules)))"
    assert shell(prefix=(sys.executable, "-c", code)).returncode == 0


@pytest.mark.parametrize(("q", "expected"), [(1, 1), (10, 1), (11, 2), (50, 5), (90, 9), (91, 10), (99, 10), (100, 10)])
def test_nearest_rank(q: int, expected: int) -> None:
    assert nearest_rank([7, 3, 10, 1, 5, 9, 2, 8, 4, 6], q) == expected


def test_quantiles_of_too_few_samples_are_none() -> None:
    assert summarise_samples([2.5]) == {"p10": None, "p50": 2.5, "p90": None, "p99": None, "runs": 1, "samples": [2.5]}
    ten = {"p10": 2.5, "p50": 2.5, "p90": 2.5, "p99": None, "runs": 10, "samples": [2.5] * 10}
    assert summarise_samples([2.5] * 10) == ten
    assert None not in summarise_samples([2.5] * 100).values()


def test_timing_and_summary_have_equal_percentiles() -> None:
    for runs in range(1, 130):
        timing = Timing(tuple(float(ms) for ms in range(runs, 0, -1)))
        found = summarise_samples(timing.samples)
        assert all(found[f"p{q}"] == timing.percentile(q) for q in (10, 50, 90, 99))
        assert timing.median == found["p50"] == median(timing.samples) in timing.samples


def test_confidence_interval_covers_the_median() -> None:
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(400):
        samples = rng.normal(10, 1, 40)
        misses += bool(abs(np.median(samples) - 10) > confidence_half_width(samples.tolist()) * 1.3)
    assert misses < 40


def test_speedup() -> None:
    assert speedup(6.0, 2.0) == 3.0
    assert speedup(None, 2.0) is speedup(6.0, None) is None


# --- samples of two levels are found, and samples of one level are rarely taken for two


Draw = Callable[[np.random.Generator, int], np.ndarray]


def correlated_samples(share: float) -> Draw:
    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        values = rng.standard_normal((1000, count))
        for at in range(1, count):
            values[:, at] = share * values[:, at - 1] + sqrt(1 - share**2) * values[:, at]
        return values

    return draw


# Distributions of one peak, or none: 1,000 lists of samples.
ONE_LEVEL: dict[str, Draw] = {
    "normal": lambda rng, count: np.exp(0.1 * rng.standard_normal((1000, count))),
    "uniform": lambda rng, count: 1 + rng.random((1000, count)),
    "skewed": lambda rng, count: 1 + 0.5 * rng.exponential(1, (1000, count)),
    "far outliers": lambda rng, count: 1 + 0.1 * rng.pareto(1.5, (1000, count)),
    "correlated": lambda rng, count: np.exp(0.1 * correlated_samples(0.9)(rng, count)),
    "correlated and skewed": lambda rng, count: 1 + 0.1 * np.exp(correlated_samples(0.8)(rng, count)),
    "steps of the clock": lambda rng, count: np.round(9 + rng.standard_normal((1000, count))) * 0.0005,
}


@pytest.mark.parametrize("name", ONE_LEVEL)
def test_one_level_is_rarely_taken_for_two(name: str) -> None:
    """Expect two levels in at most 0.3 % of 3,000 lists of samples."""
    rng = np.random.default_rng(1)
    lists = [samples for count in (20, 30, 50) for samples in ONE_LEVEL[name](rng, count).tolist()]
    assert sum(split_two_modes(samples) is not None for samples in lists) <= 9


@pytest.mark.parametrize("slow", [4, 10, 16])
def test_two_levels_are_found(slow: int) -> None:
    """Expect them in 99 of 100 lists of 20 samples around 0.021 ms and 0.038 ms, with 3 % of noise."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        samples = 0.021 * np.exp(0.03 * rng.standard_normal(20))
        samples[:slow] *= 0.038 / 0.021
        groups = split_two_modes(rng.permutation(samples).tolist())
        found += groups == (sorted(samples[slow:].tolist()), sorted(samples[:slow].tolist()))
    assert found >= 99


@pytest.mark.parametrize(
    "samples",
    [
        [1.0] * 9 + [2.0] * 10,  # too few
        [1.0] * 17 + [2.0] * 3,  # outliers
        [1.0] * 10 + [1.09] * 10,  # near each other
        [0.004] * 10 + [0.005] * 10,  # two steps of the clock
        [0.0] * 10 + [1.0] * 10,  # hidden by the clock's step
        [1.0] * 20,
        [],
    ],
)
def test_samples_that_form_no_two_levels(samples: list[float]) -> None:
    assert split_two_modes(samples) is None


def warnings_about(outcome: Outcome, **times: object) -> list[str]:
    return [*bimodality_warnings(replace(outcome, **times))]  # type: ignore[arg-type]


def test_the_report_notes_two_levels() -> None:
    alternating = Timing((0.175, 0.312, 0.312) * 10)
    told = report(replace(GPU, end_to_end=alternating))
    note = "end to end: the runs fall into two groups, 0.175 ms (10 runs) and 0.312 ms (20); measure again"
    assert told["notes"] == ["chunks were cut", note]
    assert not warnings_about(GPU) and not warnings_about(CPU)


def test_every_list_of_times_is_checked_for_two_levels() -> None:
    stepping = Timing((1.0,) * 12 + (2.0,) * 8)
    layer = layer_row("fc1", "naive", 1, stepping, int(8e9), int(6e6))
    assert (layer["gflop"], layer["tflops"], layer["gbytes_per_s"]) == (8.0, 8.0 / layer["ms"], 6.0 / layer["ms"])
    compared = ComparedRun("fp16", "float16", stepping, GPU.labels)
    times = {"end_to_end": stepping, "on_card": stepping, "raw_copy": stepping, "layers": (layer,)}
    found = warnings_about(GPU, **times, op_times=(layer,), compared=compared)
    group = "the runs fall into two groups, 1.000 ms (12 runs) and 2.000 ms (8), one group after the other"
    names = ("end to end", "end to end in fp16", "on the card", "raw copy", "fc1", "fc1 alone")
    assert found == [f"{name}: {group}; measure again" for name in names]
    assert warnings_about(CPU, layers=(layer,), op_times=(layer,)) == [f"fc1: {group}; measure again"]


@pytest.mark.parametrize(("ms", "told"), [(0.03, False), (0.031, True), (0.001, False)])
def test_a_pass_that_disagrees_with_its_layers(ms: float, told: bool) -> None:
    layers = tuple(layer_row(name, "naive", 1, Timing((0.01,)), 1, 1) for name in ("fc1", "fc2"))
    found = warnings_about(GPU, on_card=Timing((ms,)), layers=layers)
    assert bool(found) is told
    assert not told or found[0].startswith("on the card: the pass takes 1.6 × as long as its layers timed one by one")
    assert not warnings_about(GPU, on_card=Timing((ms,)), layers=({**layers[0], "ms": 0.0},))
