"""A kernel in this process: on NumPy arrays, which it reads and writes where they lie."""

import ctypes
import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.ladder.emulation.building import build, precompiled

# Without unique symbols: the "shared memory" of two kernels must not become one.
FLAGS = ("-shared", "-fPIC", "-fno-gnu-unique")
MAIN = """\
#include "common.cuh"
#include "{file}"
extern "C" void host_launch(unsigned x, unsigned y, unsigned z, int threads, unsigned long bytes, unsigned cluster,
                            void **values) {{
    host::launch({entry}, {{{{x, y, z}}, threads, bytes, cluster}}, values);
}}
"""


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy that ends where memory ends, but for less than 16 bytes: the first access beyond is a crash."""
    size = (max(array.nbytes, 1) + 15) // 16 * 16
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + pages), mmap.PAGESIZE, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, pages - size).reshape(array.shape)
    copy[...] = array
    return copy


class HostKernel:
    """A kernel compiled into ``folder``. Called with a stream, the grid and its arguments, it runs on the processor.

    threads: of a block; shared_bytes: its dynamic shared memory. Raises UserError as ``build`` does.
    """

    def __init__(
        self,
        folder: Path,
        source: Path,
        entry: str,
        defines: Mapping[str, str | int],
        threads: int,
        shared_bytes: int = 0,
    ) -> None:
        place = folder / hashlib.sha256(repr((entry, sorted(defines.items()))).encode()).hexdigest()[:16]
        library = place / "kernel"
        if not library.exists():
            flags = (*FLAGS, "-include", str(precompiled(folder, FLAGS)))
            build(place, source, MAIN.format(file=source.name, entry=entry), defines, flags)
        self._launch = ctypes.CDLL(str(library)).host_launch
        self._sizes = threads, ctypes.c_ulong(shared_bytes)

    def __call__(self, stream: Any, grid: tuple[int, int, int], *values: Any, cluster: int = 1) -> None:
        packed = [np.uintp(_address(value)) if value is None or value.ndim else value for value in values]
        arrays = [np.array([value]) for value in packed]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self._launch(*grid, *self._sizes, cluster, pointers)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data
