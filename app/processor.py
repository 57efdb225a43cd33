"""The processor that this runs on: its cores, and how its memory is kept."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Let the process keep what it frees: every chunk allocates the same arrays, and fresh pages cost a fifth more."""
    with suppress(OSError, AttributeError):  # another C library has its own ways
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)
