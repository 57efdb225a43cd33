"""Handle Ctrl-C where Python's KeyboardInterrupt would do harm, because it may come between any two bytecodes.

SIGTERM (from a scheduler or ``kill``) and SIGHUP (a closed terminal) have the same effect as Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

INTERRUPTED = "error: interrupted; nothing half-written was left, run the same command again"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[..., object] | int | None  # the handler type of the signal module


def _exit_interrupted(*_: object) -> None:
    """Print INTERRUPTED on standard error and end the process with exit code 2."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(2)


def install_exit_handlers() -> None:
    """Let SIGINT, SIGTERM and SIGHUP, unless ignored, end this program with one line and exit code 2 from now on.

    A program calls this before it imports anything more.
    """
    _replace_signal_handlers(signal.SIG_DFL, signal.default_int_handler, by=_exit_interrupted)
    sys.unraisablehook = _exit_on_unraisable_interrupt


def exit_ignoring_signals(code: int) -> None:
    """End the program with exit code ``code``, even if a signal arrives while the interpreter shuts down."""
    ours = _replace_signal_handlers(_exit_interrupted, by=lambda *_: os._exit(code))
    # Once threads have ended, Python removes its handlers, and signals would kill the process.
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in ours])
    sys.exit(code)


@contextmanager
def _temporary_signal_handler(*replaced: object, by: Callable[..., object]) -> Iterator[None]:
    """While the block runs, let the function ``by`` handle the signals whose handler is one of ``replaced``."""
    before: dict[signal.Signals, Handler] = {}
    try:
        before = _replace_signal_handlers(*replaced, by=by)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_on_interrupt() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on Ctrl-C while the block runs, unless the process ignores or handles Ctrl-C itself."""
    return _temporary_signal_handler(signal.SIG_DFL, _exit_interrupted, by=signal.default_int_handler)


def call_on_interrupt(action: Callable[[], object]) -> AbstractContextManager[None]:
    """Call ``action`` on Ctrl-C while the block runs, unless the process ignores or handles Ctrl-C otherwise."""
    return _temporary_signal_handler(signal.default_int_handler, by=lambda *_: action())


def exit_on_interrupt() -> AbstractContextManager[None]:
    """End the process with one line and exit code 2 on Ctrl-C while the block runs.

    Use it for blocks that need no clean-up but load C extensions, which turn KeyboardInterrupt into an ImportError, or
    use HDF5, whose callbacks lose it.
    """
    return call_on_interrupt(_exit_interrupted)


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C while a block that waits for threads runs; raise KeyboardInterrupt at its end.

    Yield a function, callable from any thread, that raises KeyboardInterrupt at once if Ctrl-C came. Without deferral,
    a KeyboardInterrupt while the main thread acquires a lock could leave the lock held, and another thread would wait
    for it for ever.
    """
    noted: list[bool] = []

    def raise_deferred_interrupt() -> None:
        if noted:
            raise KeyboardInterrupt

    with call_on_interrupt(lambda: noted.append(True)):
        yield raise_deferred_interrupt
    raise_deferred_interrupt()


def _replace_signal_handlers(*replaced: object, by: Callable[..., object]) -> dict[signal.Signals, Handler]:
    """Install ``by`` for the signals whose handler is in ``replaced``; return the old handlers. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) in replaced}
    for number in before:
        signal.signal(number, by)
    return before


def _exit_on_unraisable_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """End the program on a KeyboardInterrupt in a callback or a finaliser, which Python would only print."""
    if lost.exc_type is KeyboardInterrupt:
        _exit_interrupted()
    sys.__unraisablehook__(lost)


@contextmanager
def progress_bar(total: int, **tqdm_options: Any) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yield a function that advances it, and raises KeyboardInterrupt on Ctrl-C."""
    bar: Any = None
    if sys.stderr.isatty():
        from tqdm import tqdm  # imported only here: without a bar, its import would take as long as much of the work

        bar = tqdm(total=total, **tqdm_options)
    with deferred_interrupts() as check_interrupt, nullcontext() if bar is None else bar:

        def advance(count: int) -> None:
            check_interrupt()
            if bar is not None:
                bar.update(count)

        yield advance
