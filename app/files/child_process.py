"""Helper processes: Python programs that work for this process and end with it.

Both sides exchange short messages over a socket, the helper's standard input. Anything longer goes into files in memory
(``memory_file``), so neither side ever waits for the other to read. Only this process gets Ctrl-C.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from pathlib import Path
from typing import BinaryIO

from app.errors import UserError
from app.processes import LOOK_SECONDS, StopDetector, end_with_parent

MESSAGE_BYTES = 4096
END_SECONDS = 10.0  # for a process that has closed its socket to end


class Child(AbstractContextManager["Child"]):
    """A process that calls a module's ``main``; the end of the ``with`` block ends it, whatever it is doing."""

    def __init__(
        self, module: str, *arguments: str | int, environment: Mapping[str, str] | None = None, one_thread: bool = True
    ) -> None:
        """Start a process that calls ``main(*arguments)`` of ``module``. Raises OSError.

        one_thread: the system kills it when the calling thread ends; otherwise it has to end when its socket does.
        """
        # The user's settings and Python's start-up files do not matter there, and loading them takes time.
        command = [sys.executable, "-I", "-S", "-c", _program(module, arguments, one_thread)]
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C at the terminal does not reach it
                    env=environment,
                )
            except BaseException:
                self._link.close()
                raise
        self._stop = StopDetector(self._process.pid)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process, and then wait for its end."""
        self._link.close()
        self._process.kill()
        self._process.wait()

    def send(self, message: bytes, files: Sequence[BinaryIO] = ()) -> None:
        """Send a message of at most 128 KiB, with open files. If the process has ended, ``receive`` will tell."""
        self._link.settimeout(END_SECONDS)  # it reads at once, or the message waits in the socket
        with suppress(ConnectionError):
            socket.send_fds(self._link, [message], [file.fileno() for file in files])

    def receive(self, seconds: float = inf) -> bytes:
        """Return the next message; empty if the process has closed its socket, as it does when it ends.

        Raises TimeoutError after so many seconds, and UserError if somebody stopped the process.
        """
        deadline = time.monotonic() + seconds
        self._link.settimeout(LOOK_SECONDS)
        while True:
            try:
                return self._link.recv(MESSAGE_BYTES)
            except TimeoutError:
                if self._stop.stopped():
                    raise UserError(f"helper process {self._process.pid} was stopped by a signal: try again") from None
                if time.monotonic() >= deadline:
                    raise
            except ConnectionError:
                return b""

    def exit_code(self) -> int | None:
        """Return how a process ended that has closed its socket, negative for a signal; None if it does not end."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_SECONDS)
        return None


def memory_file(content: bytes = b"") -> BinaryIO:
    """Make a file in memory that holds ``content``; its size can be sealed. Raises OSError."""
    file = os.fdopen(os.memfd_create("lenet5", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    try:
        file.write(content)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _program(module: str, arguments: tuple[str | int, ...], one_thread: bool) -> str:
    places = [str(Path(__file__).parents[__name__.count(".")]), *(place or str(Path.cwd()) for place in sys.path)]
    ends = f"from {end_with_parent.__module__} import end_with_parent; end_with_parent({os.getpid()})\n"
    return (
        f"import sys; sys.path[:0] = {places!r}\n"
        f"{ends if one_thread else ''}"
        f"from {module} import main; main(*{arguments!r})"
    )
