"""Test exit codes: 2 for errors that the user can correct, 3 for a bug, 1 for a failed accuracy check.

They hold, too, if standard output and error are closed, full or no longer read.
"""

import argparse
import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from app.base import processor
from app.base.errors import UserError
from app.commands import parsers as common
from app.network import reference
from app.network.definitions import LENET5
from app.terminal.console import colour_verdicts, run_guarded
from data_tools.commands import command_parser
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import COMMAND, ROOT, check_error, parsers, shell, write_good_files


def run_failing(error: BaseException) -> int:
    def body() -> NoReturn:
        raise error

    return run_guarded(body)


def test_exit_codes_and_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert [run_guarded(lambda code=code: code) for code in (0, 1)] == [0, 1]  # type: ignore[misc]
    assert run_failing(UserError("wrong; do this")) == 2
    assert capsys.readouterr().err == "error: wrong; do this\n"
    assert run_failing(ModuleNotFoundError("No module named 'numpy'", name="numpy")) == 2
    assert capsys.readouterr().err == ("error: numpy is not installed here: run make run, then . .venv/bin/activate\n")


@pytest.mark.parametrize(
    "bug",
    [ZeroDivisionError("a\nbug"), ModuleNotFoundError("x", name="app.nowhere"), FileNotFoundError(2, "x", "file")],
)
def test_a_bug_is_one_line_that_says_where_and_a_traceback_on_request(
    bug: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LENET_TRACEBACK", raising=False)
    assert run_failing(bug) == 3
    err = capsys.readouterr().err
    assert err.startswith(f"error: a bug in this program: {type(bug).__name__}: ") and err.count("\n") == 1
    assert f" at {__file__}:" in err and err.endswith("; LENET_TRACEBACK=1 shows the traceback\n")
    monkeypatch.setenv("LENET_TRACEBACK", "1")
    assert run_failing(bug) == 3 and "Traceback" in capsys.readouterr().err


def test_a_long_message_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_failing(RuntimeError("kernel.cu does not compile\n" + "line\n" * 1000)) == 3
    err = capsys.readouterr().err
    assert "kernel.cu does not compile line" in err and len(err) < 600 and err.count("\n") == 1


SHORTAGES: dict[str, list[Exception]] = {
    "too little memory: free some": [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
    ],
    "no more threads or processes can be started: end some": [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
    "too many files are open: close some": [OSError(errno.EMFILE, "Too many open files", "file")],
}


@pytest.mark.parametrize(("said", "error"), [(said, error) for said in SHORTAGES for error in SHORTAGES[said]])
def test_a_shortage_is_no_bug(said: str, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(run_failing(error), *capsys.readouterr(), said)


RUN, RESIZE = "main.py --device cpu --data images --labels none", "-m data_tools resize --size 30 images new"


@pytest.mark.parametrize(
    ("command", "megabytes"), [(RUN, 40), (RUN, 140), (RUN, 160), (RUN, 240), (RESIZE, 100), (RESIZE, 150)]
)
def test_little_address_space_is_an_error_of_one_line(command: str, megabytes: int, tmp_path: Path) -> None:
    """Without a check before, the matrix library would end the process itself, with 1 or a signal."""
    write_good_files(tmp_path)
    limit = f"ulimit -v {megabytes * 1024}; cd {tmp_path}; exec"
    python = f"{sys.executable} {command}".replace("main.py", str(ROOT / "main.py"))
    own = {"PYTHONPATH": str(ROOT), "FASHION_MNIST_DIR": str(tmp_path), "HOME": str(tmp_path)}
    limited = ["sh", "-c", f"{limit} {python}"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, env={**os.environ, **own})
    if done.returncode:
        check_error(done.returncode, done.stdout, done.stderr, "(memory|threads)")


def test_the_reference_starts_as_many_threads_as_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped(_: int, nbytes: int, **__: int) -> io.BytesIO:
        if nbytes > 2 * processor.THREAD_BYTES:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return io.BytesIO()

    monkeypatch.setattr(processor, "mmap", SimpleNamespace(mmap=mapped, MAP_PRIVATE=0))
    monkeypatch.setattr(
        processor, "resource", SimpleNamespace(getrlimit=lambda _: (1, 1), RLIMIT_AS=0, RLIM_INFINITY=-1)
    )
    monkeypatch.setattr(reference, "core_count", lambda: 4)
    images = random_images(LENET5, 40)
    found = reference.compute_reference(random_graph(LENET5), images)
    np.testing.assert_array_equal(found.labels, random_graph(LENET5).reference(images).argmax(axis=1))


def every_parser() -> dict[str, argparse.ArgumentParser]:
    found = parsers()
    for action in command_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {f"data_tools {name}": parser for name, parser in action.choices.items()}
    return found


NOT_ONE_VALUE = (
    *(argparse._AppendAction, argparse._StoreTrueAction, argparse._StoreFalseAction),
    *(argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction, common._Completion),
)
SHARES = ("--smoothing", "--noise", "--min-accuracy", "--min-confidence")
OTHER_VALUES = {**dict.fromkeys(SHARES, "0.5"), "--device": "cuda"}


def test_no_option_can_be_given_twice() -> None:
    """Switches and options that collect values are excepted."""
    for name, parser in every_parser().items():
        for action in parser._actions:
            if isinstance(action, NOT_ONE_VALUE) or not action.option_strings:
                continue
            usual = str(next(iter(action.choices))) if action.choices else "5"
            text = OTHER_VALUES.get(action.option_strings[0], usual)
            values = [] if action.nargs == 0 else [text]
            given = [action.option_strings[0], *values, action.option_strings[-1], *values]
            with pytest.raises(UserError, match="given twice"):
                raise AssertionError(f"{name} {given}: {parser.parse_args(given)}")


def test_mistyped_words_of_data_tools_get_a_suggestion() -> None:
    for arguments, nearest in ((["ftech"], "fetch"), (["info", "--splti", "test"], "--split")):
        with pytest.raises(UserError, match=rf"; did you mean {nearest}\?"):
            command_parser().parse_args(arguments)


COLOURED = "answers \033[32mPASSED\033[0m: 1; agreement \033[31mFAILED\033[0m, not FAILEDs"


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured_too"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),  # no-color.org: when present and not an empty string
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_verdicts_are_coloured_only_on_terminals(
    terminal: bool, variables: dict[str, str], coloured_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = "answers PASSED: 1; agreement FAILED, not FAILEDs"
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert colour_verdicts(plain) == (COLOURED if coloured_too else plain)


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"PYTHONIOENCODING": "ascii"}, b"2 x 3 -> +-1... \\u4e2d"),
        ({"LC_ALL": "C"}, b"2 x 3 -> +-1... \\u4e2d"),
        ({"PYTHONIOENCODING": "latin-1"}, b"2 \xd7 3 -> \xb11... \\u4e2d"),
        ({"PYTHONIOENCODING": "utf-8"}, "2 × 3 → ±1… 中".encode()),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "2 × 3 → ±1… 中".encode()),
    ],
)
def test_characters_that_the_locale_lacks_are_replaced(variables: dict[str, str], shown: bytes) -> None:
    """Plain ASCII replaces them, on both streams; those without a plain form are escaped."""
    code = "import sys; from app.terminal.console import colour_verdicts, run_guarded; text = '2 × 3 → ±1… 中'; "
    code += "run_guarded(lambda: print(text) or print(text, file=sys.stderr) or 0)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=kept | variables, capture_output=True, check=True)
    assert done.stdout == done.stderr == shown + b"\n"


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
CHECK_FAILS = (
    "from app.terminal.console import run_guarded; from app.base.interrupts import exit_ignoring_signals; "
    "exit_ignoring_signals(run_guarded({}))"
)


def run_redirected(arguments: str, redirection: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams redirected by the shell. before: words before the shell's command."""
    return shell(*arguments.split(), prefix=(*before, "sh", "-c", f'exec "$@" {redirection}', "sh"))


@needs_full
@pytest.mark.parametrize(
    ("arguments", "redirection", "code"),
    [
        *(("--nonsense", errors, 2) for errors in ("2>&-", "2>/dev/full", "0<&- 2>&-")),
        *(("cache", errors, 0) for errors in ("2>&-", "2>/dev/full")),
        *(("cache", f">/dev/full {errors}", 2) for errors in ("2>&-", "2>/dev/full")),
        *(("train --help", f">&- {errors}", 0) for errors in ("2>/dev/full", "0<&- 2>&-")),  # closed: not wanted
    ],
)
def test_exit_codes_with_closed_and_full_streams(arguments: str, redirection: str, code: int) -> None:
    assert run_redirected(arguments, redirection).returncode == code


@needs_full
@pytest.mark.parametrize("arguments", ["cache --json -", "--help"])
@pytest.mark.parametrize("buffering", [[], ["env", "PYTHONUNBUFFERED=1"]], ids=["buffered", "unbuffered"])
def test_output_to_a_full_device_is_an_error(arguments: str, buffering: list[str]) -> None:
    done = run_redirected(arguments, ">/dev/full", *buffering)
    check_error(done.returncode, "", done.stderr, "standard output .No space left .*; send it elsewhere")


def test_exit_code_if_nobody_reads_the_errors() -> None:
    process = subprocess.Popen([*COMMAND, "--nonsense"], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 2


@needs_full
@pytest.mark.parametrize(
    ("body", "code"), [("lambda: 1", 1), ("lambda: 1 // 0", 3), ("lambda: print('x', file=sys.stderr) or 1", 1)]
)
def test_exit_codes_with_closed_and_full_error_streams(body: str, code: int) -> None:
    script = f"import sys; {CHECK_FAILS.format(body)}"
    for stream in ("2>&-", "2>/dev/full"):
        command = ["sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-c", script]
        assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == code


def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """If it did, messages of this program or a library would go into the file."""
    script = (
        "import os, sys\n"
        "from app.terminal.console import run_guarded\n"
        "def body():\n"
        "    with open(sys.argv[1], 'wb') as file:\n"
        "        os.write(2, b'a message')\n"
        "        print('a line', flush=True)\n"
        "        return file.fileno() <= 2\n"
        "sys.exit(run_guarded(body))\n"
    )
    path = tmp_path / "file"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script, str(path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0
    assert path.read_bytes() == b""
