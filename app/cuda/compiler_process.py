"""Compile in separate processes (see ``compiler_worker``): safe from any thread, and Ctrl-C interrupts it."""

import atexit
import marshal
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.errors import UserError

WORKER = Path(__file__).with_name("compiler_worker.py")


class Process:
    """A running compiler process. library: NVRTC's file."""

    def __init__(self, library: str) -> None:
        try:
            # In a session of its own: Ctrl-C at the terminal reaches only this process, which then ends it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER), library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"cannot start the compiler's process ({error.strerror}): end other programs") from None

    def ask(self, name: str, *request: Any) -> tuple[str, bytes, str]:
        """Send the arguments of ``compiler_worker.compiled`` to the process and return its result."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            marshal.dump((name, *request), self._process.stdin)
            self._process.stdin.flush()
            return marshal.load(self._process.stdout)
        except (EOFError, ValueError, BrokenPipeError):
            code = self._process.wait()
        if code == -signal.SIGKILL:
            raise UserError(f"the compiler was killed at {name}, perhaps out of memory: free some, and try again")
        raise RuntimeError(f"the compiler ended with code {code} at {name}")

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        with suppress(OSError), self._process:  # closes the pipes, even if one holds half a request
            pass


_idle: list[Process] = []  # threads take and return items by single, atomic list operations


def compile_program(
    library: str, name: str, text: str, headers: Mapping[str, str], flags: tuple[str, ...]
) -> tuple[str, bytes, str]:
    """Compile a program; return the error's name (empty without an error), machine code and the compiler's log.

    headers: texts by name. Raises UserError where there is no process or memory for it, RuntimeError if NVRTC crashes.
    """
    try:
        process = _idle.pop()
    except IndexError:
        process = Process(library)
    try:
        answer = process.ask(name, text, list(headers.items()), flags)
    except BaseException:
        process.end()
        raise
    _idle.append(process)
    return answer


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()
