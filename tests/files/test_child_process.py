"""Test helper processes: their messages, their end, and those that somebody stops."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cuda.cards import visible_cards
from app.cuda.compiler_process import compile_program
from app.errors import UserError
from app.files import child_process
from app.files.child_process import Child, memory_file
from app.files.hdf5 import Wanted, file_image
from app.files.hdf5_process import Reader
from data_tools.download import download
from tests.support.shell import INTERRUPTIBLE, python

Runs = Callable[[str], None]
# A program that says so when it waits in ``receive`` and gets SIGINT: the process of a child that goes on.
INTERRUPTED = """
import os, signal, sys, threading, time
from app.files import child_process
child_process._program = lambda *_: "import time; time.sleep(60)"
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with child_process.Child("any") as child:
        child.receive()
except KeyboardInterrupt:
    print(child._process.returncode)
"""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Sets what helper processes run; it has the socket as ``link``."""
    start = "import os, socket, sys, time; link = socket.socket(fileno=0)\n"
    return lambda code: monkeypatch.setattr(child_process, "_program", lambda *_: start + code)


def test_messages_and_files(runs: Runs) -> None:
    runs("(message, (file,), *_) = socket.recv_fds(link, 99, 1); os.pwrite(file, message, 0); link.send(b'written')")
    with memory_file(b"content") as file, Child("any") as child:
        child.send(b"longer than that", [file])
        assert child.receive(30) == b"written"
        assert file.seek(0) == 0 and file.read() == b"longer than that"
        assert (child.receive(30), child.exit_code()) == (b"", 0)


def test_time_runs_out(runs: Runs) -> None:
    runs("time.sleep(60)")
    with Child("any") as child, pytest.raises(TimeoutError):
        child.receive(0.2)
    assert child._process.returncode == -signal.SIGKILL


def test_an_interrupt_is_no_end() -> None:
    """It is passed on as it came, and the process is killed, not waited for."""
    done = python(INTERRUPTED, preexec_fn=INTERRUPTIBLE)
    assert (done.stdout, done.stderr) == (f"{-signal.SIGKILL}\n", "")


def test_a_process_that_closes_its_socket_and_goes_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "END_SECONDS", 0.2)
    runs("link.close(); time.sleep(60)")
    with Child("any") as child:
        assert (child.receive(30), child.exit_code()) == (b"", None)


def test_one_that_is_stopped_and_continued_is_waited_for(runs: Runs) -> None:
    runs("link.send(b'ready'); time.sleep(0.2); link.send(b'done')")
    with Child("any") as child:
        assert child.receive(30) == b"ready"
        os.kill(child._process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            child.receive(0.5)
        os.kill(child._process.pid, signal.SIGCONT)
        assert child.receive(30) == b"done"


def _read(path: Path) -> None:
    with Reader() as reader:  # not the one of all tests, whose process may run already
        reader.read(path, file_image({}, {}), Wanted(None, (), 100))


USES: dict[str, Callable[[Path], object]] = {
    "HDF5": _read,
    "a kernel": lambda path: compile_program("libnvrtc.so", path.name, "", {}, ()),
    "GPUs": lambda path: visible_cards(),
    "a download": lambda path: download("http://127.0.0.1:9", path, 100),
}


@pytest.mark.parametrize("use", USES)
def test_one_that_stays_stopped_is_not_waited_for(
    use: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No user of helper processes waits for ever, or for as long as a large file may take."""
    runs("os.kill(os.getpid(), 19)")
    monkeypatch.setattr("app.cuda.compiler_process._idle", [])
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"^helper process \d+ was stopped by a signal: try again$"):
        USES[use](tmp_path / "file")
    assert time.monotonic() - begin < 30
