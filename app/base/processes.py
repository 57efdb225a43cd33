"""Start helper processes with signals blocked, end them with their parent, and describe how they ended."""

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from app.base.interrupts import SIGNALS

CHECK_SECONDS = 0.1
STOPPED_CHECKS = 20
_PR_SET_PDEATHSIG = 1


@contextmanager
def block_signals() -> Iterator[None]:
    """Block Ctrl-C, SIGTERM and SIGHUP in this thread while the block runs, and in processes and threads it starts.

    A terminal or a scheduler sends these signals to every process. Only the first process may react: it ends the
    others.
    """
    from multiprocessing import resource_tracker  # here, as helper processes that need no more import this file

    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # its process, too, would end by SIGHUP; it unblocks the others here
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int) -> None:
    """Ask the system to kill this process when the thread that started it ends, for whatever reason.

    parent: process id of that thread, which may have ended already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def limit_resource(what: int, most: int) -> None:
    """Limit a resource of this process to ``most``, or to its hard limit if that is lower. what: such as RLIMIT_CPU."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


class StopDetector:
    """Detects that a child process is stopped, for example by SIGSTOP, so that nobody waits for it for ever."""

    def __init__(self, child: int | None) -> None:
        """Detect stops of the process with the id ``child``. It must have been started, so None is an error."""
        assert child is not None, "it has been started"
        self._child, self._found = child, 0

    def check_stopped(self) -> bool:
        """Check once; return whether each of the last STOPPED_CHECKS checks found the child stopped.

        Call it about every CHECK_SECONDS. A single check does not suffice: a terminal's Ctrl-Z and ``fg`` stop and
        continue the processes one by one.
        """
        try:
            found = os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # it has ended
            found = None
        self._found = self._found + 1 if found else 0
        return self._found >= STOPPED_CHECKS


def describe_exit_code(code: int | None) -> str:
    """Return how a process ended, in words to follow its name. code: minus the number of a signal; None: unknown."""
    if code is None:
        return "ended in an unknown way"
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", perhaps out of memory" if code == -signal.SIGKILL else ""
    return f"was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'}){hint}"
