"""Test ``main.py train --workers N``: results as of one process within rounding, and processes that fail."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe, active_children, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.network.weights import load_weights
from app.training import workers
from app.training.workers import start_team
from tests.support.shell import listing
from tests.support.training_for_tests import Refused, Train, begin, ended, new_job, some_settings, wait_for, workers_of
from tests.training.test_train_command import CHECKPOINT, MLP, call_after_saving, check_failure


def test_workers_give_the_results_of_one_process(train: Train, place: Path) -> None:
    """Weights and losses are equal within rounding. The last batch has 2 images, so one of 3 workers has none."""
    some = "--l2 0.01 --dropout fc1=0.2 --shift 2 --optimiser adamw --rate 0.01 --batch-size 25 --epochs 2"
    options = some.split()
    assert train(*MLP, *options, "--out", "one.h5", "--json", "one.json")[0] == 0
    code, out, err = train(*MLP, *options, "--workers", "3", "--out", "more.h5", "--json", "more.json")
    assert (code, err) == (0, "") and out.count("\nepoch ") == 2 and out.count("wrote ") == 1
    with h5py.File(place / "one.h5") as one, h5py.File(place / "more.h5") as more:
        for name, array in one.items():
            np.testing.assert_allclose(more[name][()], array[()], rtol=1e-4, atol=1e-5)
    for one_epoch, epoch in zip(
        *(json.loads((place / name).read_text())["epochs"] for name in ("one.json", "more.json")), strict=True
    ):
        assert {**epoch, "seconds": 0} == pytest.approx({**one_epoch, "seconds": 0}, rel=1e-4)
    assert ", 3 workers; best epoch" in str(load_weights(place / "more.h5").recipe)
    assert set(listing(place)) == {"images", "labels", "one.h5", "more.h5", "one.json", "more.json"}


def test_more_workers_than_images_are_refused(refused: Refused) -> None:
    wrong = "--workers 53 is more than the 52 images of a batch"
    refused([*MLP, "--workers", "53", "--batch-size", "1000"], wrong)


def test_too_few_processes_is_an_error(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    monkeypatch.setattr(get_context("spawn").Process, "start", Mock(side_effect=error))
    wrong = r"cannot start 2 workers \(Resource temporarily unavailable\): use fewer --workers"
    check_failure(train(*MLP, "--workers", "2"), wrong)


ROOT = Path(__file__).parents[2]


def test_a_killed_worker_is_an_error(train: Train, place: Path) -> None:
    def kill_worker() -> None:
        (worker,) = active_children()
        worker.kill()

    kept = f"{CHECKPOINT} stores the last complete epoch: continue with --resume {CHECKPOINT}"
    wrong = rf"worker 2 of 2 was ended by signal 9 \(Killed\), perhaps out of memory: .*fewer --workers; {kept}"
    with call_after_saving(kill_worker):
        check_failure(train(*MLP, "--epochs", "3", "--workers", "2"), wrong)
    assert set(listing(place)) == {"images", "labels", CHECKPOINT}
    assert train("--resume", CHECKPOINT)[0] == 0


class UnloadableArray:
    """An array whose unpickling in a child process raises MemoryError."""

    def __reduce__(self) -> tuple:
        return _raise_in_child, ()


def _raise_in_child() -> np.ndarray:
    if parent_process() is not None:
        raise MemoryError("no room\nfor it")
    return np.zeros(0)


class SleepingArray:
    """An array whose unpickling takes 1000 seconds."""

    def __reduce__(self) -> tuple:
        return time.sleep, (1000,)


def test_a_workers_memory_error_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(Exception, match=r"^worker 2 of 2 failed: MemoryError: no room for it$"),
        start_team(2, new_job(some_settings(), UnloadableArray()), lambda: "") as team,
    ):
        team.all_reduce(np.zeros(3))
    assert active_children() == [] and capfd.readouterr() == ("", "")


def test_a_suspended_worker_is_killed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(workers, "CHECK_SECONDS", 0.1)
    with (
        pytest.raises(UserError, match=r"^worker 2 of 2 was stopped by a signal: train again$"),
        start_team(2, new_job(some_settings()), lambda: "") as team,
    ):
        (worker,) = active_children()
        os.kill(worker.pid or 0, signal.SIGSTOP)
        while True:
            team.all_reduce(np.zeros(3))
    assert active_children() == [] and capfd.readouterr() == ("", "")


def test_a_hanging_command_is_ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 does not notice that a worker failed, as while it waits for a GPU."""
    codes, ended = [], Event()

    def record_exit(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", record_exit)
    monkeypatch.setattr(workers, "GRACE", 0.1)
    with start_team(2, new_job(some_settings(), UnloadableArray()), lambda: "; all is well"):
        assert ended.wait(30)
    expected = "error: worker 2 of 2 failed: MemoryError: no room for it; all is well\n"
    assert codes == [2] and capfd.readouterr() == ("", expected)


def test_an_error_of_the_command_ends_the_workers() -> None:
    with pytest.raises(ZeroDivisionError), start_team(2, new_job(some_settings()), lambda: ""):
        assert len(active_children()) == 1
        raise ZeroDivisionError
    assert active_children() == []


@pytest.mark.parametrize("close", [lambda ours, theirs: ours.close(), lambda ours, theirs: theirs.close()])
def test_an_exit_without_a_reason_is_reported(close: Callable[[Connection, Connection], None]) -> None:
    ours, theirs = Pipe(duplex=False)
    close(ours, theirs)
    process: Any = SimpleNamespace(exitcode=1)
    reason = workers.WorkerProcess(1, process, ours, ours).early_exit_reason(2)
    assert reason == "worker 2 of 2 ended with exit code 1: train again with fewer --workers"


@pytest.mark.parametrize(("epochs", "number", "send"), [(0, signal.SIGINT, os.killpg), (1, signal.SIGTERM, os.kill)])
def test_a_signal_is_reported_once(
    epochs: int, number: signal.Signals, send: Callable[[int, int], None], place: Path
) -> None:
    """A terminal or a scheduler sends the signal to every process, also while the workers start."""
    process = begin(place)
    wait_for((place / CHECKPOINT).exists if epochs else lambda: workers_of(process))
    workers = workers_of(process)
    send(process.pid, number)
    code, _, err = ended(process)
    assert workers and not any(Path(f"/proc/{worker}").exists() for worker in workers), "no orphans"
    assert code == 2 and re.fullmatch(r"error: interrupted; [^\n]*\n", err), err
    assert not epochs or f"--resume {CHECKPOINT}" in err
    assert [name for name in listing(place) if name.startswith(".")] == []


def test_workers_end_with_the_command() -> None:
    """The worker is busy, as while it waits for a GPU."""
    script = (
        "import os, time; from app.training.workers import start_team\n"
        "from tests.training.test_workers import SleepingArray, new_job, some_settings\n"
        "with start_team(2, new_job(some_settings(), SleepingArray()), str): time.sleep(1); os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True)
    assert ended(process) == (-signal.SIGKILL, "", "")
