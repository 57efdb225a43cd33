"""Test the process that reads HDF5: each end and each wrong answer gives a one-line error, and nothing is left."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.files import child_process, hdf5_process
from app.files.hdf5 import ReadRequest, build_hdf5_bytes
from app.files.hdf5_process import Reader
from tests.support.hostile_hdf5 import endless
from tests.support.shell import ROOT, python, started, user_error

Runs = Callable[[str], None]
IMAGE = build_hdf5_bytes({"x": np.arange(4, dtype=np.float32)}, {"text": "a", "number": 2.5})
WANTED = ReadRequest(None, ("text", "number"), 1 << 20)
TAKES_REQUEST = """
import json, os, resource, socket, time
link = socket.socket(fileno=0)
link.send(b"ready")
exchange, source, result = socket.recv_fds(link, 100, 3)[1]
def answer(answer):
    os.write(result, bytes(4096))
    os.truncate(exchange, 0)
    os.pwrite(exchange, answer, 0)
    link.send(b"done")
    time.sleep(60)
"""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Yield a new reader with short time limits."""
    monkeypatch.setattr(hdf5_process, "SECONDS", 1)
    monkeypatch.setattr(hdf5_process, "WAITING", 60)
    with Reader() as reader:
        yield reader


@pytest.fixture
def set_code(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return a function that sets the code of the process."""
    return lambda code: monkeypatch.setattr(child_process, "_child_program_text", lambda *_: code)


def _error_of_reading(reader: Reader, content: bytes = IMAGE, wanted: ReadRequest = WANTED) -> str:
    before = time.monotonic()
    error = user_error(lambda: reader.read(Path("file.h5"), content, wanted))
    assert time.monotonic() - before < 30
    assert error.isprintable() and "file.h5" in error
    return error


def test_one_process_reads_several_files(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "file.h5").write_bytes(IMAGE)
    for content in (IMAGE, None):
        found = reader.read(tmp_path / "file.h5", content, WANTED)
        assert (found.names, found.attributes) == (("x",), {"text": "a", "number": 2.5})
        np.testing.assert_array_equal(found.arrays["x"], np.arange(4, dtype=np.float32), strict=True)
        found.arrays["x"][:] = 0  # the array is writable
    assert "1 allowed" in _error_of_reading(reader, wanted=ReadRequest(None, (), 1))
    first = reader._start_child_once()
    assert "x" in reader.read(tmp_path / "file.h5", IMAGE, WANTED).arrays and reader._start_child_once() is first


def test_a_new_process_reads_after_a_file_that_ended_the_last(reader: Reader) -> None:
    assert "HDF5 was still at it after 1 s of processor time" in _error_of_reading(reader, endless())
    assert "x" in reader.read(Path("file.h5"), IMAGE, WANTED).arrays


FAULTS: dict[str, tuple[str, str]] = {
    "too little memory": ("answer(b'{\"memory\": true}')", "file.h5: reading it takes more memory than there is"),
    "garbage": ("link.send(bytes(range(60))); time.sleep(60)", "impossible values"),
    "no JSON": ("answer(b'\\xff{')", "impossible values"),
    "deep JSON": ("answer(b'[' * 200_000)", "impossible values"),
    "another JSON": ("answer(b'[1]')", "impossible values"),
    "without end": ("os.truncate(exchange, 1 << 40); link.send(b'done'); time.sleep(60)", "impossible values"),
    "lines and colours": ('answer(b\'{"error": "file.h5\\\\n\\\\u001b[2J"}\')', r"file.h5\n\x1b[2J"),
    "long error": ("answer(b'{\"error\": \"file.h5' + b'x' * 1_000_000 + b'\"}')", "xxx…"),
}


GOOD: dict[str, Any] = {"names": ["x"], "arrays": [["x", "<f4", [4], 0]], "attributes": {"number": 1}}
MANY = [f"x{number}" for number in range(300)]
LIES: dict[str, dict[str, Any]] = {
    "no names": {"names": 5},
    "array that has no name": {"names": ["y"]},
    "objects": {"arrays": [["x", "|O", [1], 0]]},
    "other byte order": {"arrays": [["x", ">f4", [4], 0]]},
    "negative": {"arrays": [["x", "<f4", [-4], 0]]},
    "too many dimensions": {"arrays": [["x", "<f4", [1] * 99, 0]]},
    "before the beginning": {"arrays": [["x", "<f4", [4], -4096]]},
    "behind the end": {"arrays": [["x", "<f4", [4], 1 << 20]]},
    "offset that no page has": {"arrays": [["x", "<f4", [4], 8]]},
    "more than was allowed": {"names": MANY, "arrays": [[name, "<f4", [1024], 0] for name in MANY]},
    "attribute that nobody asked for": {"attributes": {"kind": 1}},
    "attribute that is no value": {"attributes": {"text": {"a": 1}}},
    "attribute that is a truth": {"attributes": {"text": True}},
    "attribute of lists": {"attributes": {"text": [[1]]}},
}


def _program_that_answers(answer: dict[str, Any]) -> str:
    return f"{TAKES_REQUEST}answer({json.dumps(answer).encode()!r})"


# Name → code of the process, and the message of the error.
ENDS: dict[str, tuple[str, str]] = {
    **{case: (TAKES_REQUEST + action, message) for case, (action, message) in FAULTS.items()},
    **{f"lie: {case}": (_program_that_answers({**GOOD, **lie}), "impossible values") for case, lie in LIES.items()},
}


@pytest.mark.parametrize("case", ENDS)
def test_every_end_and_wrong_answer_gives_a_one_line_error(case: str, reader: Reader, set_code: Runs) -> None:
    program, message = ENDS[case]
    set_code(program)
    assert message in _error_of_reading(reader)
    assert reader._child is None or reader._child._process.poll() is None
    reader.close()
    assert reader._child is None


def test_a_process_that_sleeps_is_killed(reader: Reader, set_code: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    set_code(f"{TAKES_REQUEST}time.sleep(60)")
    monkeypatch.setattr(hdf5_process, "WAITING", 1)
    assert "HDF5 was still at it after 1 s;" in _error_of_reading(reader)


def test_the_correct_answer_is_accepted(reader: Reader, set_code: Runs) -> None:
    """The wrong answers of the other tests are variations of this one."""
    set_code(_program_that_answers(GOOD))
    assert reader.read(Path("file.h5"), IMAGE, WANTED).arrays["x"].tolist() == [0, 0, 0, 0]


def test_a_process_that_does_not_start_is_an_error(reader: Reader, set_code: Runs) -> None:
    set_code("raise ImportError")
    with pytest.raises(UserError, match=r"does not start \(exit code 1\): free some memory, or run python"):
        reader.read(Path("file.h5"), IMAGE, WANTED)


def test_the_error_for_too_little_memory_says_so(reader: Reader, set_code: Runs, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(1 << 25, np.uint8), chunks=(1 << 25,), compression="gzip")
    wanted = ReadRequest(None, (), 1 << 30)
    assert reader.read(tmp_path / "file.h5", None, wanted).arrays["x"].shape == (1 << 25,)
    reader.close()
    now = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()"
    little = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({now} + (48 << 20),) * 2)"
    set_code(child_process._child_program_text("app.files.hdf5_child", (), True).replace("main(*", f"{little}; main(*"))
    with pytest.raises(UserError, match=r"file.h5: reading it takes more memory than there is.*; free some, or"):
        reader.read(tmp_path / "file.h5", None, wanted)


def _busy_children(process: int) -> list[int]:
    """Return the children that have used so much time that they must be within HDF5."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if int(fields[1]) == process and fields[0] != "Z" and seconds > 0.5:
                found.append(int(status.parent.name))
    return found


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_the_command(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "bad.h5").write_bytes(endless())
    process = started(tmp_path, "graph", "--weights", "bad.h5")
    try:
        deadline = time.monotonic() + 20
        while not (children := _busy_children(process.pid)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(sent)
        out, err = process.communicate(timeout=5)
    finally:
        process.kill()
    assert out == "" and (err == "" if sent == signal.SIGKILL else re.fullmatch("error: .*\n", err))
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reading_from_a_command_leaves_no_process_and_imports_no_h5py(tmp_path: Path) -> None:
    (tmp_path / "file.h5").write_bytes(IMAGE)
    code = """
import sys
from pathlib import Path
from app.files.hdf5 import ReadRequest
from app.files.hdf5_process import read_untrusted
from app.files.hdf5_start import start_children_early, _ahead
start_children_early(1)
assert len(_ahead) == 1
found = read_untrusted(Path("file.h5"), None, ReadRequest(None, (), 100))
assert not _ahead and found.names == ("x",) and "h5py" not in sys.modules
assert not Path(f"/proc/self/task/{__import__('os').getpid()}/children").read_text()
"""
    assert python(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0
