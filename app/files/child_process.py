"""Start helper processes: Python programs that work for this process and end with it.

The two processes exchange short messages over a socket, which is the helper's standard input. Requests and answers are
in files in memory (``memory_file``), so neither process waits until the other reads. Ctrl-C reaches only this process.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import BinaryIO

from app.base.clock import Deadline
from app.base.errors import UserError
from app.base.processes import CHECK_SECONDS, StopDetector, end_with_parent

MESSAGE_BYTES = 4096
MAX_FILES = 8  # open files with one message
MAX_ANSWER_BYTES = 64 << 20
END_SECONDS = 10.0  # time for a process to end after it has closed its socket
READY = b"ready"


@contextmanager
def _report_resource_shortage() -> Iterator[None]:
    """Within the ``with`` block, turn OSErrors, as for lack of memory or processes, into UserErrors."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot run a helper process ({reason}): end other programs, and try again") from error


class Child(AbstractContextManager["Child"]):
    """A process that runs the function ``main`` of a module. The end of the ``with`` block kills it."""

    @_report_resource_shortage()
    def __init__(
        self, module: str, *arguments: str | int, environment: Mapping[str, str] | None = None, one_thread: bool = True
    ) -> None:
        """Start a process that calls ``main(*arguments)`` of ``module``. Raises UserError if it cannot start.

        environment: its variables; None for those of this process. one_thread: the system kills it when the calling
        thread ends; otherwise it must end when its socket closes.
        """
        # -I -S: without the user's settings and Python's start-up files, which take time to load.
        command = [sys.executable, "-I", "-S", "-c", _child_program_text(module, arguments, one_thread)]
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
        self.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._link.close()
        self._process.kill()
        self._process.wait()

    def send_request(self, request: bytes, files: Sequence[BinaryIO] = (), seconds: float = inf) -> bytes:
        """Send a request to a process that runs ``answer_requests``; return its answer, empty if it closed its socket.

        files: open files that the process needs. Raises TimeoutError after ``seconds``, UserError if it was stopped.
        """
        with memory_file(request) as exchange:
            with suppress(ConnectionError):  # if the process has ended, ``receive`` returns b""
                socket.send_fds(self._link, [b"request"], [file.fileno() for file in (exchange, *files)])
            while (message := self.receive(seconds)) == READY:
                pass
            return _read_descriptor(exchange.fileno()) if message else b""

    def receive(self, seconds: float = inf) -> bytes:
        """Wait for the next message and return it; it is empty if the process closed its socket, as at its end.

        Raises TimeoutError after ``seconds``, and UserError if a signal stopped the process.
        """
        deadline = Deadline(seconds)
        self._link.settimeout(CHECK_SECONDS)
        while True:
            try:
                return self._link.recv(MESSAGE_BYTES)
            except TimeoutError:
                if self._stop.check_stopped():
                    raise UserError(f"helper process {self._process.pid} was stopped by a signal: try again") from None
                if deadline.is_over:
                    raise
            except ConnectionError:
                return b""

    def exit_code(self) -> int | None:
        """Return the exit code of a process that closed its socket (negative: a signal); None if it goes on running."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_SECONDS)
        return None


def answer_requests(answer: Callable[..., bytes]) -> None:
    """Answer requests in a helper process until the other process closes the socket or ends.

    answer: function that returns the answer to a request, given its content and the descriptors of its files.
    """
    link = socket.socket(fileno=0)
    with suppress(ConnectionError):
        link.send(READY)
        while descriptors := socket.recv_fds(link, MESSAGE_BYTES, MAX_FILES)[1]:
            exchange, *files = descriptors
            content = answer(_read_descriptor(exchange), *files)
            os.truncate(exchange, 0)
            os.pwrite(exchange, content, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            link.send(b"done")


def _read_descriptor(descriptor: int) -> bytes:
    return os.pread(descriptor, min(os.fstat(descriptor).st_size, MAX_ANSWER_BYTES), 0)


@_report_resource_shortage()
def memory_file(content: bytes = b"") -> BinaryIO:
    """Return a file in memory with this content; its size can be sealed (``F_ADD_SEALS``). Raises UserError."""
    file = os.fdopen(os.memfd_create("lenet5", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    try:
        file.write(content)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _child_program_text(module: str, arguments: tuple[str | int, ...], one_thread: bool) -> str:
    paths = [str(Path(__file__).parents[__name__.count(".")]), *(path or str(Path.cwd()) for path in sys.path)]
    ends = f"from {end_with_parent.__module__} import end_with_parent; end_with_parent({os.getpid()})\n"
    return (
        f"import sys; sys.path[:0] = {paths!r}\n"
        f"{ends if one_thread else ''}"
        f"from {module} import main; main(*{arguments!r})"
    )
