"""What happens when one of the processes of ``train --workers N`` ends before its time, or all should end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe, active_children, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.training import command, workers
from app.training.workers import team_of
from tests.support.shell import listing
from tests.support.training_for_tests import OWN, Train, begin, ended, new_job, some_settings, wait_for, workers_of
from tests.training.test_train_command import CHECKPOINT, MLP, check_failure

ROOT = Path(__file__).parents[2]


def test_killed(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.save_checkpoint

    def save(*arguments: Any) -> None:
        real(*arguments)
        (worker,) = active_children()
        worker.kill()

    kept = f"{CHECKPOINT} holds the last whole epoch: go on with --resume {CHECKPOINT}"
    with monkeypatch.context() as patch:
        patch.setattr(command, "save_checkpoint", save)
        result = train(*MLP, "--epochs", "3", "--workers", "2")
    check_failure(
        result,
        rf"worker 2 of 2 was ended by signal 9 \(Killed\), perhaps for want of memory: .*fewer --workers; {kept}",
    )
    assert set(listing(place)) == {"images", "labels", CHECKPOINT}
    assert train("--resume", CHECKPOINT, *OWN[:4])[0] == 0


class NoRoom:
    """An array for which there is no memory in a process that is started by this one."""

    def __reduce__(self) -> tuple:
        return _no_room, ()


def _no_room() -> np.ndarray:
    if parent_process() is not None:
        raise MemoryError("no room\nfor it")
    return np.zeros(0)


class Asleep:
    """An array that takes its time to arrive."""

    def __reduce__(self) -> tuple:
        return time.sleep, (1000,)


def test_no_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(Exception, match=r"^worker 2 of 2 failed: MemoryError: no room for it$"),
        team_of(2, new_job(some_settings(), NoRoom()), lambda: "") as team,
    ):
        team.add(np.zeros(3))
    assert active_children() == [] and capfd.readouterr() == ("", "")


def test_a_lead_that_does_not_notice_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As while it waits for a card."""
    codes, ended = [], Event()

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(workers, "GRACE", 0.1)
    with team_of(2, new_job(some_settings(), NoRoom()), lambda: "; all is well"):
        assert ended.wait(30)
    expected = "error: worker 2 of 2 failed: MemoryError: no room for it; all is well\n"
    assert codes == [2] and capfd.readouterr() == ("", expected)


def test_an_error_of_the_lead_ends_all() -> None:
    with pytest.raises(ZeroDivisionError), team_of(3, new_job(some_settings()), lambda: ""):
        assert len(active_children()) == 2
        raise ZeroDivisionError
    assert active_children() == []


@pytest.mark.parametrize("close", [lambda ours, theirs: ours.close(), lambda ours, theirs: theirs.close()])
def test_last_words_that_do_not_come(close: Callable[[Connection, Connection], None]) -> None:
    ours, theirs = Pipe(duplex=False)
    close(ours, theirs)
    process: Any = SimpleNamespace(exitcode=1)
    reason = workers.Worker(1, process, ours, ours).reason(2)
    assert reason == "worker 2 of 2 ended with exit code 1: train again with fewer --workers"


@pytest.mark.parametrize(
    ("epochs", "number", "send"),
    [
        (0, signal.SIGINT, os.killpg),
        (1, signal.SIGINT, os.killpg),
        (0, signal.SIGTERM, os.killpg),
        (1, signal.SIGTERM, os.kill),
    ],
)
def test_ctrl_c_is_answered_once(
    epochs: int, number: signal.Signals, send: Callable[[int, int], None], place: Path
) -> None:
    """Though the terminal, or a scheduler, sends it to every process, also while the workers start."""
    process = begin(place)
    wait_for((place / CHECKPOINT).exists if epochs else lambda: workers_of(process))
    workers = workers_of(process)
    send(process.pid, number)
    code, _, err = ended(process)
    assert workers and not any(Path(f"/proc/{worker}").exists() for worker in workers), "no orphans"
    assert code == 2 and re.fullmatch(r"error: interrupted; [^\n]*\n", err), err
    assert not epochs or f"--resume {CHECKPOINT}" in err
    assert [name for name in listing(place) if name.startswith(".")] == []


def test_workers_end_with_the_lead(place: Path) -> None:
    process = begin(place)
    wait_for((place / CHECKPOINT).exists)
    process.kill()
    assert ended(process)[::2] == (-signal.SIGKILL, "")


def test_workers_end_with_the_lead_whatever_they_wait_for() -> None:
    """As for a card."""
    script = (
        "import os, time; from app.training.workers import team_of\n"
        "from tests.training.test_worker_failures import Asleep, new_job, some_settings\n"
        "with team_of(2, new_job(some_settings(), Asleep()), str): time.sleep(1); os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True)
    assert ended(process) == (-signal.SIGKILL, "", "")
