"""Standard output and error closed, full or no longer read: the exit code is always one of those documented."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shell import COMMAND, ROOT, shell

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
CHECK_FAILS = "from app.console import guarded; from app.interrupts import exit_with; exit_with(guarded({}))"


def end(arguments: str, redirection: str, *before: str) -> int:
    """The exit code of the command with its streams sent there by the shell."""
    return shell(*arguments.split(), prefix=(*before, "sh", "-c", f'exec "$@" {redirection}', "sh")).returncode


@needs_full
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_errors_that_nobody_gets(errors: str) -> None:
    assert end("networks", errors) == 0
    assert end("--nonsense", errors) == 2
    assert end("networks", f">/dev/full {errors}") == 2
    assert end("train --help", f">&- {errors}") == 0, "what is closed is not wanted"


@needs_full
@pytest.mark.parametrize("arguments", ["networks --json -", "--help", "train --help"])
@pytest.mark.parametrize("buffering", [[], ["env", "PYTHONUNBUFFERED=1"]], ids=["buffered", "unbuffered"])
def test_output_that_nobody_gets(arguments: str, buffering: list[str]) -> None:
    assert end(arguments, ">/dev/full", *buffering) == 2


def test_errors_whose_reader_has_gone() -> None:
    process = subprocess.Popen([*COMMAND, "--nonsense"], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 2


@needs_full
@pytest.mark.parametrize(
    ("body", "code"), [("lambda: 1", 1), ("lambda: 1 // 0", 3), ("lambda: print('x', file=sys.stderr) or 1", 1)]
)
def test_the_code_of_a_failed_check_and_of_a_bug(body: str, code: int) -> None:
    script = f"import sys; {CHECK_FAILS.format(body)}"
    for stream in ("2>&-", "2>/dev/full"):
        command = ["sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-c", script]
        assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == code


def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """Else a message, ours or a library's, would go into it."""
    script = (
        "import os, sys\n"
        "from app.console import guarded\n"
        "def body():\n"
        "    with open(sys.argv[1], 'wb') as file:\n"
        "        os.write(2, b'a message')\n"
        "        print('a line', flush=True)\n"
        "        return file.fileno() <= 2\n"
        "sys.exit(guarded(body))\n"
    )
    path = tmp_path / "file"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script, str(path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0
    assert path.read_bytes() == b""
