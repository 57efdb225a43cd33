"""Ctrl-C where KeyboardInterrupt, which may be raised between any two steps of the main thread, would do harm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

INTERRUPTED = "error: interrupted; nothing half-written was left, run the same command again"


@contextmanager
def on_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """While the block runs, Ctrl-C calls ``action``; unless the process ignores it, or somebody else handles it."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, lambda *_: action())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_on_interrupt() -> AbstractContextManager[None]:
    """While the block runs, Ctrl-C ends the process at once, with one line and exit code 2.

    For blocks that have nothing to undo but load C extensions, which turn KeyboardInterrupt into an ImportError,
    or use HDF5, in whose callbacks it gets lost.
    """

    def leave() -> None:
        os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(2)

    return on_interrupt(leave)


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C is only noted while the block runs: for blocks that wait for threads.

    KeyboardInterrupt while the main thread takes a lock can leave it taken, and then a thread waits for it for ever.
    Yields a function, for any thread, that raises KeyboardInterrupt if Ctrl-C was noted; so does the block's end.
    """
    noted = False

    def note() -> None:
        nonlocal noted
        noted = True

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    with on_interrupt(note):
        yield check
    check()
