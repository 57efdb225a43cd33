"""Report and limit what the process uses of the CPU: cores, address space, OpenBLAS's threads and freed memory."""

import ctypes
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby, product
from pathlib import Path

THREAD_BYTES = 128 << 20
"""Address space of a thread: its stack, malloc's arena, the matrix library's buffer and a chunk's arrays. Loading the
libraries takes as much."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def core_numbers() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(core_numbers())


def divide_cores(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Divide the cores among ``count`` processes. Each gets at least one; with too few cores, processes share them."""
    total = len(cores)
    return [cores[at * total // count : (at + 1) * total // count] or [cores[at % total]] for at in range(count)]


def format_cores(cores: Iterable[int]) -> str:
    """Return core numbers as ranges: ``0-3,8``."""
    ordered = sorted(cores)
    runs = [[*run] for _, run in groupby(ordered, key=lambda core: core - ordered.index(core))]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for later arrays of the same sizes: with fresh pages, a run is a fifth slower."""
    with suppress(OSError, AttributeError):  # other C libraries lack mallopt
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)


class _OneBlasThread:
    """Counts the running ``one_blas_thread`` blocks; keeps OpenBLAS's numbers of threads from before them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        self.before: list[int] = []


_one = _OneBlasThread()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit OpenBLAS, NumPy's matrix library, to one thread per call in the whole process while the block runs.

    Use it for blocks in which one thread per core calls OpenBLAS: otherwise the threads of these calls would mostly
    wait for each other. Other matrix libraries are not limited.
    """
    with _one.lock:
        libraries = _openblas_thread_functions()
        if not _one.blocks:
            _one.before = [get() for get, _ in libraries]
            for _, set_threads in libraries:
                set_threads(1)
        _one.blocks += 1
    try:
        yield
    finally:
        with _one.lock:
            _one.blocks -= 1
            if not _one.blocks:
                for (_, set_threads), threads in zip(libraries, _one.before, strict=True):
                    set_threads(threads)


@cache
def _openblas_thread_functions() -> Sequence[tuple[Callable[[], int], Callable[[int], object]]]:
    """Return the functions that get and set the number of threads of each OpenBLAS that this process has loaded.

    Builds use different names for them: NumPy's wheels since 2.0, older wheels, and the system's library.
    """
    found = []
    with suppress(OSError):
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = {line.partition("/")[2] for line in mapped if "blas" in line.rpartition("/")[2]}
        for path, prefix, suffix in product(sorted(paths), ("scipy_openblas", "openblas"), ("64_", "")):
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(f"/{path}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
                names = (f"{prefix}_{verb}_num_threads{suffix}" for verb in ("get", "set"))
                found.append((library[next(names)], library[next(names)]))
    return found


def check_address_space(threads: int = 1) -> None:
    """Raise MemoryError if a resource limit leaves too little address space for ``threads`` threads.

    At the limit, OpenBLAS would crash, or exit with code 1, with which this program reports a failed check of accuracy.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, threads * THREAD_BYTES, flags=mmap.MAP_PRIVATE).close()
    except OSError as error:
        raise MemoryError(str(error)) from error


def count_fitting_threads(most: int) -> int:
    """Return how many threads, up to ``most``, fit in the address space. Raise MemoryError if not even one fits."""
    for threads in range(most, 1, -1):
        with suppress(MemoryError):
            check_address_space(threads)
            return threads
    check_address_space()
    return 1
