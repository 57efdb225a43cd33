"""Start helper processes: Python programs that work for this process and end with it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from app.processes import end_with_parent


def start(module: str, *arguments: str | int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that calls ``main(*arguments)`` of ``module``; it is killed when the calling thread ends.

    options: of subprocess.Popen, such as where standard input and output go; by default they are closed.
    Raises OSError.
    """
    # The user's settings and Python's start-up files do not matter there, and loading them takes time.
    command = [sys.executable, "-I", "-S", "-c", _program(module, arguments)]
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, start_new_session=True, **settings)  # only this process gets Ctrl-C


def _program(module: str, arguments: tuple[str | int, ...]) -> str:
    places = [str(Path(__file__).parents[__name__.count(".")]), *(place or str(Path.cwd()) for place in sys.path)]
    return (
        f"import sys; sys.path[:0] = {places!r}\n"
        f"from {end_with_parent.__module__} import end_with_parent; end_with_parent({os.getpid()})\n"
        f"from {module} import main; main(*{arguments!r})"
    )
