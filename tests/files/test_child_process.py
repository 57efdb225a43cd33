"""Test helper processes of every kind: whatever ends one, its user soon gets a one-line error; none is left."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.base.errors import UserError
from app.cuda import compiler_process
from app.cuda.cards import visible_cards
from app.cuda.compiler_process import compile_program
from app.files import child_process
from app.files.child_process import Child, memory_file
from app.files.hdf5 import ReadRequest, build_hdf5_bytes
from app.files.hdf5_process import Reader
from data_tools.download import DownloadError, download_file
from tests.support.shell import INTERRUPTIBLE, ROOT, python

Runs = Callable[[str], None]
# A program that gets SIGINT while it waits in ``receive`` for a child that does not end.
INTERRUPTED = """
import os, signal, sys, threading, time
from app.files import child_process
child_process._child_program_text = lambda *_: "import time; time.sleep(60)"
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with child_process.Child("any") as child:
        child.receive()
except KeyboardInterrupt:
    print(child._process.returncode)
"""


@pytest.fixture
def set_code(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return a function that sets the code of helper processes, in which ``link`` is the socket."""
    start = "import os, socket, sys, time; link = socket.socket(fileno=0)\n"
    return lambda code: monkeypatch.setattr(child_process, "_child_program_text", lambda *_: start + code)


def test_requests_with_files_are_answered(set_code: Runs) -> None:
    set_code(
        f"sys.path.insert(0, {str(ROOT)!r}); from app.files.child_process import answer_requests\nlink.detach()\n"
        "answer_requests(lambda request, file: os.pread(file, 99, 0) + request)"
    )
    with memory_file(b"content") as file, Child("any") as child:
        assert child.send_request(b" and a request", [file], 30) == b"content and a request"
        assert child.send_request(b"", [file], 30) == b"content"


def test_a_process_that_takes_too_long_is_killed(set_code: Runs) -> None:
    set_code("time.sleep(60)")
    with Child("any") as child, pytest.raises(TimeoutError):
        child.receive(0.2)
    assert child._process.returncode == -signal.SIGKILL


def test_an_interrupt_is_passed_on_and_kills_the_process() -> None:
    done = python(INTERRUPTED, preexec_fn=INTERRUPTIBLE)
    assert (done.stdout, done.stderr) == (f"{-signal.SIGKILL}\n", "")


def test_a_stopped_process_may_continue(set_code: Runs) -> None:
    set_code("link.send(b'begun'); time.sleep(0.2); link.send(b'done')")
    with Child("any") as child:
        assert child.receive(30) == b"begun"
        os.kill(child._process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            child.receive(0.5)
        os.kill(child._process.pid, signal.SIGCONT)
        assert child.receive(30) == b"done"


# --- the four modules that use helper processes


def _read_hdf5(path: Path) -> None:
    with Reader() as reader:  # a new reader, because that of all tests may have a process
        reader.read(path, build_hdf5_bytes({}, {}), ReadRequest(None, (), 100))


USES: dict[str, Callable[[Path], object]] = {
    "HDF5": _read_hdf5,
    "a kernel": lambda path: compile_program("libnvrtc.so", path.name, "", {}, ()),
    "GPUs": lambda path: visible_cards(),
    "a download": lambda path: download_file("http://127.0.0.1:9", path, 100),
}
STOPPED = r"helper process \d+ was stopped by a signal: try again"
LACKING = r"cannot run a helper process \(Resource temporarily unavailable\): end other programs, and try again"
# Code of the process, or "" if none can be started → by user, the message of the error.
ENDS: dict[str, dict[str, str]] = {
    "os.kill(os.getpid(), 11)": {
        "HDF5": r"HDF5 crashed on it \(SIGSEGV\)",
        "a kernel": "the compiler ended with code -11 at file",
        "GPUs": r"the NVIDIA driver does not start: its process was ended by signal 11 \(Segmentation fault\)",
        "a download": r"the process that downloads it was ended by signal 11 \(Segmentation fault\)",
    },
    "os.kill(os.getpid(), 9)": {
        "HDF5": "its reading was killed, as happens where memory runs out",
        "a kernel": "the compiler was killed at file, perhaps out of memory: free some, and try again",
        "GPUs": r"its process was ended by signal 9 \(Killed\), perhaps out of memory",
        "a download": r"it was ended by signal 9 \(Killed\), perhaps out of memory",
    },
    "os._exit(7)": {
        "HDF5": r"HDF5 crashed on it \(exit code 7\)",
        "a kernel": "the compiler ended with code 7 at file",
        "GPUs": "its process ended with exit code 7",
        "a download": "the process that downloads it ended with exit code 7",
    },
    "os._exit(0)": {
        "HDF5": r"HDF5 crashed on it \(exit code 0\)",
        "a kernel": "the compiler ended with code 0 at file",
        "GPUs": "its process ended with exit code 0",
    },
    "link.close(); time.sleep(60)": {
        "HDF5": "HDF5 gives impossible values for it",
        "a kernel": "the compiler ended with code None at file",
        "GPUs": "its process ended in an unknown way",
        "a download": "the process that downloads it ended in an unknown way",
    },
    "os.kill(os.getpid(), 19)": dict.fromkeys(USES, STOPPED),  # SIGSTOP must not make a user wait until the time limit
    "": dict.fromkeys(USES, LACKING),
}


@pytest.mark.parametrize(("end", "use"), [(end, use) for end, told in ENDS.items() for use in told])
def test_the_end_of_a_helper_is_a_one_line_error(
    end: str, use: str, set_code: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "END_SECONDS", 0.2)
    monkeypatch.setattr(child_process, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(compiler_process, "_idle", [])
    set_code(f"link.send(b'ready')\n{end}")
    if not end:
        lacking = BlockingIOError(11, "Resource temporarily unavailable")
        monkeypatch.setattr(child_process.subprocess, "Popen", Mock(side_effect=lacking))
    before, begin = _children(), time.monotonic()
    with pytest.raises((UserError, RuntimeError, DownloadError), match=ENDS[end][use]) as caught:
        USES[use](tmp_path / "file")
    assert str(caught.value).isprintable() and time.monotonic() - begin < 30
    assert _children() == before and compiler_process._idle == []


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()
