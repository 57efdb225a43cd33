"""Ctrl-C at any moment: one line, exit code 2, soon, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from app.cli import main
from app.cpu import CpuSession
from app.interrupts import INTERRUPTED
from tests.shell import COMMAND, check_error, listing, shell

RUN = ("--device", "cpu", "--batch", "10000", "--repeat", "50", "--json", "report.json")  # would take half a minute
SURELY_OURS = 0.8
"""Seconds after which the interpreter has long since started and runs our code."""
# As C extensions do while they load.
BAD_IMPORT = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    raise ImportError("this is unlikely to be a problem of ours") from None
"""


@pytest.mark.parametrize("seconds", [0.05, 0.3, SURELY_OURS, 2.0])
def test_moments(seconds: float, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("an older one")
    before = listing(tmp_path)
    process = subprocess.Popen(
        [*COMMAND, *RUN],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # it may be ignored here
    )
    try:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - start < 5
    finally:
        process.kill()
    assert out == "" and listing(tmp_path) == before
    if seconds < SURELY_OURS and process.returncode in (1, -signal.SIGINT):
        assert "app/" not in err  # before our code ran
    else:
        check_error(process.returncode, out, err, "interrupted")


def test_while_modules_load(tmp_path: Path) -> None:
    (tmp_path / "h5py.py").write_text(BAD_IMPORT)
    done = shell("graph", env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{INTERRUPTED}\n")


def test_ctrl_c_while_threads_work_is_obeyed_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []

    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("not cut off while it may hold a lock")

    monkeypatch.setattr(CpuSession, "run", interrupted)
    code = main([*RUN[:4], "--json", str(tmp_path / "report.json")])
    check_error(code, *capsys.readouterr(), "interrupted; nothing half-written was left")
    assert steps and listing(tmp_path) == {}


def test_while_the_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older one")
    before = listing(tmp_path)

    def interrupted(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text[: len(text) // 2].encode(encoding))
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    assert main(["--device", "cpu", "--batch", "1", "--json", str(path)]) == 2
    assert capsys.readouterr().err == f"{INTERRUPTED}\n"
    assert listing(tmp_path) == before
