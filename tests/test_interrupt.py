"""Test Ctrl-C, SIGTERM and SIGHUP at any moment: the program soon ends with one line, code 2 and whole files."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.base.interrupts import INTERRUPTED, SIGNALS, progress_bar
from app.cli import main
from app.engine.cpu import CpuEngine
from app.engine.interface import Outputs
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_images
from tests.support.shell import COMMAND, INTERRUPTIBLE, Refuses, listing, python, shell, started, write_good_files

Prepared = tuple[list[str], dict[str, tuple[int, ...]]]
OLDER = '{"schema": "lenet5-inference/report/1"}'
RUN = (
    *("--device", "cpu", "--data", "images", "--labels", "none", "--repeat", "500"),
    *("--json", "report.json", "--overwrite"),
)
SURELY_OURS = 1.0  # seconds after which the interpreter has long since started and our code classifies
# A program that sends itself signal NUMBER at the AT-th call or return since main.py's first line. If AT is 0, it
# prints after how many of these events our handlers are installed, and the number of all events.
AT_AN_EVENT = """
import os, runpy, sys
at, number, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv[:] = sys.argv[3:]
sys.path[0] = os.path.dirname(path)
events = ours = 0

def count(frame, event, argument):
    global events, ours
    if events or frame.f_code.co_filename == path:
        events += 1
        if events == at:
            os.kill(os.getpid(), number)
        if (event, frame.f_code.co_name) == ("return", "install_exit_handlers"):
            ours = events

sys.setprofile(count)
try:
    runpy.run_path(path, run_name="__main__")
except SystemExit:
    os.write(2, f"{ours} {events}".encode() * (at == 0))
    raise
"""
# A module that turns Ctrl-C into ImportError while it loads, as C extensions do.
BAD_IMPORT = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    raise ImportError("this is unlikely to be a problem of ours") from None
"""


@pytest.mark.parametrize(
    ("seconds", "number"), [(0.05, signal.SIGINT), (0.3, signal.SIGTERM), (SURELY_OURS, signal.SIGHUP)]
)
def test_signals_at_three_moments(seconds: float, number: signal.Signals, tmp_path: Path) -> None:
    write_idx(tmp_path / "images", random_images(LENET5, 5000)[:, 0])
    (tmp_path / "report.json").write_text(OLDER)
    before = listing(tmp_path)
    process = started(tmp_path, *RUN)
    try:
        time.sleep(seconds)
        process.send_signal(number)
        start = time.monotonic()
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - start < 5
    finally:
        process.kill()
    assert out == "" and listing(tmp_path) == before
    if seconds < SURELY_OURS and process.returncode in (1, -number):
        assert "app/" not in err  # before our code ran
    else:
        assert (process.returncode, err) == (2, f"{INTERRUPTED}\n")


def run_with_signal(event: int, number: signal.Signals) -> tuple[int, str, str]:
    arguments = [str(event), str(int(number)), os.path.realpath(COMMAND[1]), "graph", "--arch", "sm_80"]
    done = python(AT_AN_EVENT, *arguments, preexec_fn=INTERRUPTIBLE)
    return done.returncode, done.stdout, done.stderr


def test_signals_at_moments_since_the_first_line() -> None:
    """The moments have logarithmic distances and lie in imports, arguments, work, output and clean-up."""
    code, whole, err = run_with_signal(0, signal.SIGINT)
    ours, events = map(int, err.split())
    assert code == 0 and whole.count("\n") > 5 and 0 < ours < events / 10
    moments = int(os.environ.get("LENET_SIGNALS", "7"))
    ended = 0
    for index in range(moments):
        number = SIGNALS[index % 3]
        first = 2 if number == signal.SIGINT else ours + 1
        event = round(first * (1.001 * events / first) ** (index / (moments - 1)))
        code, out, err = run_with_signal(event, number)
        if code == 0:
            assert (out, err) == (whole, "") and event > 0.9 * events, "only what has done its work may end well"
        else:
            assert (code, err) == (2, f"{INTERRUPTED}\n") and out in ("", whole), (event, number, out, err)
            ended += 1
    assert ended > moments // 2


IN_A_FINALISER = """
import os, signal
from app.base.interrupts import raise_on_interrupt, install_exit_handlers
class Late:
    def __del__(self): os.kill(os.getpid(), signal.SIGTERM); sum(range(10))
install_exit_handlers()
with raise_on_interrupt():
    Late()
    print('went on')
"""


# Python deletes the objects of modules after it has removed its signal handlers.
AT_THE_VERY_END = """
import os, sys
from app.base.interrupts import SIGNALS, exit_ignoring_signals, install_exit_handlers

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), signals=SIGNALS, say=os.write):
        for number in signals:
            kill(process, number)
        say(1, b"late")

install_exit_handlers()
late = Late()
exit_ignoring_signals(1)
"""


WHERE_IT_IS_IGNORED = """
import os, signal, sys
number = int(sys.argv[1])
signal.signal(number, signal.SIG_IGN)
from app.terminal.console import run_guarded
from app.base.interrupts import deferred_interrupts, exit_on_interrupt, exit_ignoring_signals, install_exit_handlers
def body():
    os.kill(os.getpid(), number)
    with exit_on_interrupt(), deferred_interrupts():
        os.kill(os.getpid(), number)
    return 0
install_exit_handlers()
exit_ignoring_signals(run_guarded(body))
"""


ENDS = {
    # Python prints an exception in a finaliser and goes on, also after KeyboardInterrupt.
    "one that Python would pass over is obeyed": (IN_A_FINALISER, [], (2, "", f"{INTERRUPTED}\n")),
    "those while the interpreter ends change nothing": (AT_THE_VERY_END, [], (1, "late", "")),
    # As under nohup, or behind a shell's &.
    **{f"{number.name} stays ignored": (WHERE_IT_IS_IGNORED, [str(int(number))], (0, "", "")) for number in SIGNALS},
}


@pytest.mark.parametrize(("code", "arguments", "end"), ENDS.values(), ids=ENDS)
def test_a_signal_in_a_program(code: str, arguments: list[str], end: tuple[int, str, str]) -> None:
    done = python(code, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == end


def test_ctrl_c_while_modules_load(tmp_path: Path) -> None:
    (tmp_path / "h5py.py").write_text(BAD_IMPORT)
    done = shell("graph", env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{INTERRUPTED}\n")


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Return a command that would replace a report, and the listing of its small files before it."""
    write_good_files(tmp_path)
    (tmp_path / "report.json").write_text(OLDER)
    files = f"--data {tmp_path}/images --labels none --json {tmp_path}/report.json --overwrite"
    return ["--device", "cpu", *files.split()], listing(tmp_path)


def test_ctrl_c_while_threads_work_ends_the_next_step(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    steps: list[str] = []

    def interrupted(_: CpuEngine, images: np.ndarray, *others: object) -> Outputs:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("not cut off while it may hold a lock")
        return Outputs(np.zeros(len(images), np.uint8))

    monkeypatch.setattr(CpuEngine, "run", interrupted)
    command, before = prepared
    refuses(command, "interrupted; nothing half-written was left")
    assert steps and listing(tmp_path) == before


def test_ctrl_c_while_the_report_is_written(
    prepared: Prepared, tmp_path: Path, interrupt_writing: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command, before = prepared
    interrupt_writing()
    assert main(command) == 2
    assert capsys.readouterr().err == f"{INTERRUPTED}\n"
    assert listing(tmp_path) == before


def test_a_progress_bar_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with progress_bar(5, desc="steps") as progress:
        progress(2)
        progress(3)
    assert " 5/5 " in terminal.getvalue()
