"""Times: the two clocks, what start-up costs from the start of the process, and the statistics of samples."""

import json
import sys
import time
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base.clock import Deadline, Timer, clocked, host_timed
from app.engine.onnx_runtime import OnnxEngine
from app.engine.opening import cpu_engine
from app.main_job import startup
from app.main_job.result import Timing
from app.main_job.startup import Stopwatch, own
from app.main_job.statistics import half_width, median, nearest_rank, speedup, summary
from tests.support.schemas import mistakes
from tests.support.shell import shell, write_good_files


def test_the_host_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def call() -> str:
        now[0] += 0.002
        return "result"

    monkeypatch.setattr("app.base.clock.now", lambda: now[0])
    assert clocked(call) == ("result", pytest.approx(2.0))
    assert host_timed(call, 3, warmup=2) == pytest.approx((2.0,) * 3)
    assert now[0] == pytest.approx(6 * 0.002)


def test_timers_and_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("app.base.clock.now", lambda: now[0])
    timer, deadline, never = Timer(), Deadline(3.0), Deadline(inf)
    laps = []
    for now[0] in (11.0, 12.5):
        laps.append(timer.lap())
    assert laps == [1.0, 1.5] and timer.seconds == 2.5
    assert (deadline.left, deadline.passed) == (0.5, False)
    deadline.extend(9.0, most=2.0)
    assert deadline.left == 2.0
    now[0] = 14.5
    assert (deadline.left, deadline.passed) == (0.0, True)
    assert (never.left, never.passed) == (inf, False)


def test_events_are_recorded_around_what_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.cuda import events

    diary: list[tuple[str, Any]] = []

    class FakeEvent:
        def record(self, stream: str) -> None:
            diary.append(("record", stream))

        def synchronize(self) -> None:
            diary.append(("wait", self))

    fake = SimpleNamespace(Event=FakeEvent, get_elapsed_time=lambda first, last: (first, last))
    monkeypatch.setattr(events, "cupy", SimpleNamespace(cuda=fake))
    pair: Any = events.EventPair()
    pair.around(lambda: diary.append(("enqueue", None)), "stream")
    assert diary == [("record", "stream"), ("enqueue", None), ("record", "stream")]
    pair.synchronize()
    before, after = pair.ms
    assert before is not after and diary[-1] == ("wait", after)


def test_laps_add_up() -> None:
    watch = Stopwatch()
    assert watch.spent == {}  # the tests are not main.py
    for name in ("one", "other", "one"):
        time.sleep(0.01)
        watch.lap(name)
    assert list(watch.spent) == ["one", "other"]
    assert watch.spent["one"] >= 20 and watch.spent["other"] >= 10
    assert sum(watch.spent.values()) <= watch.elapsed < sum(watch.spent.values()) + 1000


def test_it_begins_where_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(STARTED=time.perf_counter() - 0.2))
    monkeypatch.setattr(startup, "_process_age", lambda: 0.5)
    watch = Stopwatch()
    assert watch.spent == pytest.approx({"start": 300, "import": 200}, abs=50)
    assert watch.elapsed >= 500
    monkeypatch.setattr(startup, "_process_age", lambda: 0.0)  # the system does not tell
    assert Stopwatch().spent["start"] == 0


def test_what_any_program_on_cupy_spends_is_not_our_own() -> None:
    assert own({"start": 1, "import": 2, "numpy": 4, "cupy": 8, "context": 16, "nvrtc": 32, "kernels": 64}) == 99


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """The parts are those of the record, and together no more than the command took."""
    write_good_files(tmp_path)
    arguments = ("--device", "cpu", "--weights", "weights.h5", "--data", "images", "--labels", "none", "--json", "-")
    before = time.perf_counter()
    done = shell(*arguments, cwd=tmp_path)
    took = (time.perf_counter() - before) * 1e3
    report = json.loads(done.stdout)
    engine = ["engine"] if cpu_engine() is OnnxEngine else []
    assert list(report["one_off_ms"]) == ["start", "import", "numpy", "weights", "context", "data", *engine]
    assert all(ms >= 0 for ms in report["one_off_ms"].values())
    assert 0 < report["once_own_ms"] < report["once_ms"] < report["command_ms"] < took + 50
    assert not mistakes(report)


@pytest.mark.parametrize("command", [("--help",), ("graph", "--help")])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    done = shell(*command, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "app.cli" in loaded and not loaded & {"numpy", "cupy", "h5py", "tqdm", "requests"}


def test_the_main_job_loads_no_records_and_downloader_and_progress_bars_only_when_they_are_needed() -> None:
    code = (
        "import sys, app.main_job.job; sys.exit(bool({'tqdm', 'requests', 'cupy', 'app.records'} & set(sys.modules)))"
    )
    assert shell(prefix=(sys.executable, "-c", code)).returncode == 0


@pytest.mark.parametrize(("q", "expected"), [(1, 1), (10, 1), (11, 2), (50, 5), (90, 9), (91, 10), (99, 10), (100, 10)])
def test_nearest_rank(q: int, expected: int) -> None:
    assert nearest_rank([7, 3, 10, 1, 5, 9, 2, 8, 4, 6], q) == expected


def test_quantiles_of_too_few_samples_are_none() -> None:
    assert summary([2.5]) == {"p10": None, "p50": 2.5, "p90": None, "p99": None, "runs": 1, "samples": [2.5]}
    ten = {"p10": 2.5, "p50": 2.5, "p90": 2.5, "p99": None, "runs": 10, "samples": [2.5] * 10}
    assert summary([2.5] * 10) == ten
    assert None not in summary([2.5] * 100).values()


def test_a_timing_and_a_summary_are_of_one_definition() -> None:
    for runs in range(1, 130):
        timing = Timing(tuple(float(ms) for ms in range(runs, 0, -1)))
        found = summary(timing.samples)
        assert all(found[f"p{q}"] == timing.percentile(q) for q in (10, 50, 90, 99))
        assert timing.median == found["p50"] == median(timing.samples) in timing.samples


def test_half_width_covers_the_median() -> None:
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(400):
        samples = rng.normal(10, 1, 40)
        misses += bool(abs(np.median(samples) - 10) > half_width(samples.tolist()) * 1.3)
    assert misses < 40


def test_speedup() -> None:
    assert speedup(6.0, 2.0) == 3.0
    assert speedup(None, 2.0) is speedup(6.0, None) is None
