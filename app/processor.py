"""What this machine grants the process: cores and address space; and how the process keeps freed memory."""

import ctypes
import mmap
import os
import resource
from contextlib import suppress

THREAD_BYTES = 128 << 20
"""Address space of a thread: its stack, malloc's arena, the matrix library's buffer and a chunk's arrays. Loading the
libraries takes as much."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let the process keep freed memory: every chunk allocates the same arrays, and fresh pages cost a fifth more."""
    with suppress(OSError, AttributeError):  # other C libraries lack mallopt
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)


def check_room(threads: int = 1) -> None:
    """Raise MemoryError if a limit leaves too little address space for so many threads. Does nothing without a limit.

    At the limit, OpenBLAS would end in a signal, or in exit code 1, which means a failed accuracy check.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, threads * THREAD_BYTES, flags=mmap.MAP_PRIVATE).close()
    except OSError as error:
        raise MemoryError(str(error)) from error


def threads_with_room(most: int) -> int:
    """Return the number of threads that fit in memory, up to ``most``. Raises MemoryError if not even one fits."""
    for threads in range(most, 1, -1):
        with suppress(MemoryError):
            check_room(threads)
            return threads
    check_room()
    return 1
