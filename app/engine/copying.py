"""Copy arrays within host memory by several threads: the caller, and helpers that join when they wake.

On an H100's virtual machine, one thread copies 11 GB/s to page-locked memory; four threads copy 28 GB/s. The caller
copies pieces like a helper, so a machine that is busy with other work costs hardly any time. A process has one group of
helpers.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

from app.base.processor import core_count

MOST_HELPERS = 3  # beside the caller; more gain little, and other threads of the program need cores, too
PIECE = 1 << 20  # bytes that a thread copies at a time
Copy = Callable[[np.ndarray, np.ndarray], None]  # copies the second array to the first


def copy_by_threads(target: np.ndarray, source: np.ndarray) -> None:
    """Copy ``source`` to the start of ``target`` by several threads; return when the copy is complete."""
    for _ in copy_in_parts(target, source, [len(source)]):
        pass


def copy_in_parts(target: np.ndarray, source: np.ndarray, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Copy rows in parts; yield (start, end) of each part once it is copied, while helper threads copy later parts.

    target, source: C-contiguous, of equal dtype and row size. ends: the row at which each part ends (excluded); the
    last one is the number of rows. After an exception, helpers may still write to ``target``: do not use it again.
    """
    row = source.nbytes // max(len(source), 1)
    bounds = [*pairwise((0, *ends))]
    arrays = target, source
    addresses = target.ctypes.data, source.ctypes.data
    parts = [_CopyPart(arrays, addresses, start * row, stop * row) for start, stop in bounds]
    _helpers.assign_parts(parts, sum(len(part) for part in parts) - 1)
    try:
        for at, part in enumerate(parts):
            while not part.is_copied():
                # While helpers copy this part's last pieces, the caller copies pieces of the next part.
                if not any(later.copy_next_piece() for later in parts[at:]):
                    part.wait()
            yield bounds[at]
    finally:
        for part in parts:
            part.cancel()


class _CopyPart:
    """Bytes ``start`` to ``stop`` of a copy, divided into pieces; each thread takes one piece after another."""

    def __init__(
        self, arrays: tuple[np.ndarray, np.ndarray], addresses: tuple[int, int], start: int, stop: int
    ) -> None:
        to, of = addresses
        # A piece holds the arrays: their memory must outlive the piece's copy, also if the caller was interrupted.
        self._pieces = deque((to + at, of + at, min(PIECE, stop - at), arrays) for at in range(start, stop, PIECE))
        self._count = len(self._pieces)
        self._copied: SimpleQueue[None] = SimpleQueue()  # an entry for each copied piece

    def __len__(self) -> int:
        return self._count

    def copy_next_piece(self) -> bool:
        """Copy the next piece without Python's global lock; return False if none is left. Any thread may call it."""
        try:
            to, of, nbytes, _ = self._pieces.popleft()
        except IndexError:
            return False
        ctypes.memmove(to, of, nbytes)
        self._copied.put(None)
        return True

    def is_copied(self) -> bool:
        """Return whether all pieces are copied."""
        return self._copied.qsize() == self._count

    def wait(self) -> None:
        """Wait until all pieces are copied."""
        for _ in range(self._count):
            self._copied.get()
        self._count = 0

    def cancel(self) -> None:
        """Drop the pieces that no thread has taken yet."""
        self._pieces.clear()


class _HelperThreads:
    """The threads that help to copy. They start at the first copy and end with the interpreter."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the threads, because a forked child process has none of them."""
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[list[_CopyPart] | None] = SimpleQueue()
        self._wanted = MOST_HELPERS

    def assign_parts(self, parts: list[_CopyPart], most: int) -> None:
        """Give the parts to at most ``most`` helpers, which copy one part after another."""
        if len(self._threads) < self._wanted:
            self._start()
        # Calls that no helper has answered yet are not repeated: all helpers are busy, or the machine is.
        for _ in range(min(most, len(self._threads) - self._calls.qsize())):
            self._calls.put(parts)

    def _start(self) -> None:
        with self._lock:
            self._wanted = min(MOST_HELPERS, core_count() - 1)
            while len(self._threads) < self._wanted:
                thread = Thread(target=_run_helper, args=(self._calls,), name="copying", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads are allowed, or the interpreter ends
                    self._wanted = len(self._threads)
                    return
                self._threads.append(thread)

    def stop(self) -> None:
        """End the threads."""
        self._wanted = 0
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []


def _run_helper(calls: SimpleQueue[list[_CopyPart] | None]) -> None:
    while (parts := calls.get()) is not None:
        for part in parts:
            while part.copy_next_piece():
                pass


_helpers = _HelperThreads()
os.register_at_fork(after_in_child=_helpers.reset)
atexit.register(_helpers.stop)
