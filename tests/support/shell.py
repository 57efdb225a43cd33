"""Run the program as a user does, in a separate process; check its error messages and the files that it leaves."""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.commands.parsers import COMMANDS, load_parser
from app.network.definitions import LENET5
from app.network.weights import save_weights
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_graph, random_images

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, str(ROOT / "main.py"))
# For processes that tests send SIGINT: it may be ignored here, and would stay so there.
INTERRUPTIBLE = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)


def shell(*arguments: str | Path, prefix: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python main.py …`` and capture its output, unless ``options`` of subprocess.run redirect it.

    prefix: a command that starts the program. The interpreter buffers output as it does by default.
    """
    environment = {**os.environ, **options.pop("env", {}), "PYTHONUNBUFFERED": ""}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [*prefix, *COMMAND, *map(str, arguments)]
    return subprocess.run(command, text=True, encoding="utf-8", timeout=180, env=environment, **streams)


def in_a_shell(words: Sequence[str]) -> int:
    """Run main.py in a separate process and print its output here; a program for the fixture ``refuses``."""
    done = shell(*words)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


# The fixture ``refuses``: the command, a pattern in the line that refuses it, and the program if it is not main.py.
Refuses = Callable[..., None]


def python(code: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a separate process that can import this project; capture its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, **options})


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``python main.py …`` in the folder and return the process: output in pipes, a session of its own."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=INTERRUPTIBLE,
    )


def wait_for(condition: Callable[[], object], seconds: float = 60.0, told: str = "") -> None:
    """Wait until the condition is met; fail after ``seconds``. told: end of the failure's text."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"nothing changed in {seconds:g} s; {told}"
        time.sleep(0.02)


def user_error(call: Callable[[], object]) -> str:
    """Return the text of the UserError that the call raises; check that it is one line."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, by name."""
    return {name: load_parser(name) for name in ("run", *COMMANDS)}


def listing(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return everything below ``directory`` by path, with the status values that change when a file changes."""
    found = {}
    for path in directory.rglob("*"):
        status = path.lstat()
        changing = () if path.is_dir() else (status.st_size, status.st_mtime_ns)
        found[str(path.relative_to(directory))] = (status.st_mode, *changing)
    return found


def check_error(code: int, out: str, err: str, pattern: str) -> None:
    """Check for exit code 2, empty standard output, and one line on standard error that contains ``pattern``."""
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"error: .*{pattern}.*\n", err), err


def write_good_files(directory: Path) -> None:
    """Write three random images (``images``), their labels (``labels``) and random lenet5 weights (``weights.h5``)."""
    write_idx(directory / "images", random_images(LENET5, 3)[:, 0])
    write_idx(directory / "labels", np.array([1, 2, 3], np.uint8))
    (directory / "weights.h5").write_bytes(_good_weights())


@cache
def _good_weights() -> bytes:
    with TemporaryDirectory() as folder:
        save_weights(path := Path(folder, "weights.h5"), random_graph(LENET5, bias=False).parameters, network=LENET5)
        return path.read_bytes()
