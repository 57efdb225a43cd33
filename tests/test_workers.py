"""``main.py train --workers N``: as one process within rounding, the same bits again; what happens when one ends."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Event
from typing import Any

import h5py
import numpy as np
import pytest

from app.cli import main
from app.networks import NETWORKS
from app.training import command, loop, watch, workers
from app.training.job import Job
from app.training.model import training_model
from app.training.workers import team_of
from app.weights import load_weights
from tests.shell import COMMAND, check_error, listing
from tests.test_train_command import check_failure, interrupt_after
from tests.training_for_tests import OWN, Train, some_settings, write_images

MLP = ["--network", "mlp", *OWN]
CHECKPOINT = "mlp_trained.h5.checkpoint"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with images and labels."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)
    return tmp_path


@pytest.fixture
def train(place: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Runs the command; returns exit code, output and errors. No process is left behind."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["train", *arguments])
        assert active_children() == []
        return (code, *capsys.readouterr())

    return run


# --- what comes out


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, ["--l2", "0.01", "--dropout", "fc1=0.2", "--shift", "2", "--epochs", "2"]),
        # Of 52 images, the last batch has 2: one of the three has none.
        (3, ["--optimiser", "adamw", "--rate", "0.01", "--batch", "25", "--epochs", "2"]),
    ],
)
def test_as_one_process_within_rounding(count: int, options: list[str], train: Train, place: Path) -> None:
    assert train(*MLP, *options, "--output", "one.h5")[0] == 0
    code, out, err = train(*MLP, *options, "--workers", str(count), "--output", "more.h5")
    assert (code, err) == (0, "") and out.count("\nepoch ") == 2 and out.count("wrote ") == 1
    with h5py.File(place / "one.h5") as one, h5py.File(place / "more.h5") as more:
        for name, array in one.items():
            np.testing.assert_allclose(more[name][()], array[()], rtol=1e-4, atol=1e-5)
    assert f", {count} workers; best epoch" in str(load_weights(place / "more.h5").recipe)
    assert set(listing(place)) == {"images", "labels", "one.h5", "more.h5"}


def test_resumed_gives_the_same_bits(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*MLP, "--epochs", "3", "--workers", "2", "--output"]
    assert train(*options, "whole.h5")[0] == 0
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        check_failure(train(*options, "parts.h5"), "interrupted; .*go on with --resume parts.h5.checkpoint")
    (place / "copy.checkpoint").write_bytes((place / "parts.h5.checkpoint").read_bytes())
    code, out, _ = train("--resume", "parts.h5.checkpoint", *OWN[:4], "--workers", "2")
    assert code == 0 and "note" not in out
    assert (place / "whole.h5").read_bytes() == (place / "parts.h5").read_bytes()
    code, out, _ = train("--resume", "copy.checkpoint", *OWN[:4])  # by another number: not without a word
    assert code == 0 and "note: copy.checkpoint comes from 2 workers; with 1 bits may differ" in out


def test_loss_that_is_no_number(train: Train, place: Path) -> None:
    options = [*MLP, "--batch", "60", "--rate", "1000", "--weight-decay", "1000", "--epochs", "20", "--workers", "2"]
    begun = time.monotonic()
    check_failure(train(*options), "loss became (nan|inf).*smaller --rate; .* holds the last whole epoch")
    assert time.monotonic() - begun < 8


# --- a process that ends


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


def a_job(**changes: Any) -> Job:
    settings = some_settings()
    model = training_model(NETWORKS["mlp"], settings.biases)
    images, labels = np.zeros((60, 1, 28, 28), np.uint8), np.zeros(60, np.uint8)
    values = {"images": images, "labels": labels, "progress": loop.start(model, settings), "device": "cpu"}
    return Job(**{"settings": settings, "model": model, **values, **changes})


def test_no_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(Exception, match=r"^worker 2 of 2 failed: MemoryError: no room for it; all is well$"),
        team_of(2, a_job(images=NoRoom()), lambda: "; all is well") as team,
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
    monkeypatch.setattr(watch, "GRACE", 0.1)
    with team_of(2, a_job(images=NoRoom()), lambda: ""):
        assert ended.wait(30)
    assert codes == [2] and capfd.readouterr() == ("", "error: worker 2 of 2 failed: MemoryError: no room for it\n")


def test_an_error_of_the_lead_ends_all() -> None:
    with pytest.raises(ZeroDivisionError), team_of(3, a_job(), lambda: ""):
        assert len(active_children()) == 2
        raise ZeroDivisionError
    assert active_children() == []


def begin(place: Path) -> subprocess.Popen:
    """A training without end, in a session of its own, as from a terminal."""
    return subprocess.Popen(
        [*COMMAND, "train", *MLP, "--epochs", "10000", "--workers", "2"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored here
    )


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    """Once all processes have: the streams are theirs, too."""
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("epochs", [0, 1])
def test_ctrl_c_is_answered_once(epochs: int, place: Path) -> None:
    """Though the terminal sends it to every process, also while the workers start."""
    process = begin(place)
    if epochs:
        wait_for(place / CHECKPOINT)
    else:
        time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 2 and re.fullmatch(r"error: interrupted; [^\n]*\n", err), err
    assert not epochs or f"--resume {CHECKPOINT}" in err
    assert [name for name in listing(place) if name.startswith(".")] == []


def test_workers_end_with_the_lead(place: Path) -> None:
    process = begin(place)
    wait_for(place / CHECKPOINT)
    process.kill()
    assert ended(process)[::2] == (-signal.SIGKILL, "")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- mistakes


@pytest.mark.parametrize(
    ("count", "wrong"),
    [
        ("0", "argument --workers: 0 is not between 1 and"),
        ("two", "argument --workers: 'two' is not a whole number"),
        ("17", "--workers 17 is more than the 16 images of a batch: use fewer"),
    ],
)
def test_numbers_of_workers(count: str, wrong: str, train: Train, place: Path) -> None:
    before = listing(place)
    check_error(*train(*MLP, "--workers", count), wrong)
    assert listing(place) == before


def test_more_than_there_are_images(train: Train) -> None:
    check_error(
        *train(*MLP, "--batch", "1000", "--workers", "53"), "--workers 53 is more than the 52 images of a batch"
    )


def test_no_more_processes(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(get_context("spawn").Process, "start", start)
    wrong = r"cannot start 2 workers \(Resource temporarily unavailable\): use fewer --workers"
    check_failure(train(*MLP, "--workers", "2"), wrong)


# --- on cards


@pytest.mark.gpu
def test_two_cards_train_as_one(train: Train, place: Path) -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    workers.check_workers(2, some_settings(), "cuda")
    options = [*MLP, "--device", "cuda", "--epochs", "3", "--output"]
    assert train(*options, "one.h5")[0] == 0
    for name in ("two.h5", "again.h5"):
        code, _, err = train(*options, name, "--workers", "2")
        assert (code, err) == (0, "")
    with h5py.File(place / "one.h5") as one, h5py.File(place / "two.h5") as two:
        for name, array in one.items():
            np.testing.assert_allclose(two[name][()], array[()], rtol=1e-3, atol=1e-4)
    assert (place / "two.h5").read_bytes() == (place / "again.h5").read_bytes()
