"""Ctrl-C where KeyboardInterrupt, which may be raised between any two steps of the main thread, would do harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
