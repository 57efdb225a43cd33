"""Kernels compiled by the host's C++ compiler and run by the processor, thread by thread (host_cuda.h).

Slow, and blind to what only a card can show; but index arithmetic, edges, barriers and splits are the kernels' own.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cuda.compiler import INCLUDE_DIR, sources
from app.kernels.train.train import FOLDER
from app.layers import Layer, Shape

COMPILER = shutil.which("g++")
SUPPORT = Path(__file__).parent
IN_PLACE_OF = {
    "common.cuh": "host_cuda.h",
    "half.cuh": "host_half.h",
    "mma.cuh": "host_mma.h",
    "async_copy.cuh": "host_async.h",
}
DYNAMIC = re.compile(r"extern __shared__ .*?(unsigned char|\w+) memory\[\]")  # SHARED_BYTES of it


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


class Memory:
    """What is asked of a device array's memory."""

    def __init__(self, address: int) -> None:
        self.ptr = address

    def copy_from_host_async(self, source: int, nbytes: int, _: Any) -> None:
        ctypes.memmove(self.ptr, source, nbytes)

    def memset(self, value: int, nbytes: int, _: Any = None) -> None:
        ctypes.memset(self.ptr, value, nbytes)

    memset_async = memset


class HostArray(np.ndarray):
    """An array in place of one on the card."""

    @property
    def data(self) -> Any:
        return Memory(self.ctypes.data)

    def get(self, stream: Any = None) -> np.ndarray:
        return np.array(self)


def uploaded(array: np.ndarray) -> HostArray:
    """In place of ``app.cuda.memory.uploaded``."""
    return guarded(array.ravel()).view(HostArray)


def device_array(elements: int, dtype: str) -> HostArray:
    """In place of ``app.cuda.memory.device_array``: NaN, or no place in any array."""
    return uploaded(np.full(elements * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


class Stream:
    """In place of CuPy's: everything on it is done at once."""

    ptr = 0
    null: Stream

    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """It is."""


Stream.null = Stream()


def inference_launch(site: Any, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Callable[[int, int], None]:
    """The layer's reference in place of its kernel, which has tests of its own."""

    def launch(_: int, images: int) -> None:
        inputs = np.array(x[: images * int(np.prod(shape))]).reshape(images, *shape)
        result = layer.reference(inputs, {})
        y[: result.size] = result.ravel()

    return launch


@contextmanager
def on_the_processor(folder: Path) -> Iterator[None]:
    """Within the block training's kernels run on the processor; an access beyond an input's end is a crash."""
    import cupy

    from app.cuda import memory
    from app.training.gpu import arena, engine, kernels, products, stages

    if COMPILER is None:
        pytest.skip("g++ is not installed")
    HostFunction.folder = folder
    replaced = {
        "training_kernel": HostFunction,
        "device_array": device_array,
        "uploaded": uploaded,
        "pinned_array": np.empty,
        "capability": lambda: (9, 0),
        "inference_launch": inference_launch,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda, "Stream", Stream)
        patch.setattr(cupy.cuda, "get_current_stream", lambda: Stream.null)
        for module in (memory, arena, engine, kernels, products, stages):
            for name in replaced.keys() & vars(module).keys():
                patch.setattr(module, name, replaced[name])
        yield


class HostKernel:
    """A kernel compiled into ``folder``. Called with a stream, the grid and its arguments, it runs on the processor."""

    def __init__(self, folder: Path, source: Path, entry: str, defines: Mapping[str, str | int], threads: int) -> None:
        if COMPILER is None:
            pytest.skip("g++ is not installed")
        options = [f"-D{key}={value}" for key, value in sorted(defines.items())]
        place = folder / hashlib.sha256(repr((entry, options)).encode()).hexdigest()[:16]
        library = place / "kernel.so"
        if not library.exists():
            place.mkdir(parents=True)
            texts = sources(source)
            replaced = {name: SUPPORT / own for name, own in IN_PLACE_OF.items()}
            replaced["activations.cuh"] = INCLUDE_DIR / "activations.cuh"
            texts.update({name: path.read_text(encoding="utf-8") for name, path in replaced.items()})
            main = f'#include "common.cuh"\n#include "{source.name}"\nHOST_LAUNCH({entry})\n'
            for found in filter(None, map(DYNAMIC.search, texts.values())):
                main += f"HOST_SHARED({found[1]}, SHARED_BYTES)\n"
            for file, text in texts.items():
                (place / file).write_text(text.replace("extern __shared__", "extern"), encoding="utf-8")
            (place / "main.cpp").write_text(main, encoding="utf-8")
            # Without unique symbols: the "shared memory" of two kernels must not become one.
            flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique", "-ffp-contract=off"]
            subprocess.run([COMPILER, *flags, *options, "main.cpp", "-o", library.name], cwd=place, check=True)
        self._launch = ctypes.CDLL(str(library)).host_launch
        self._threads = threads

    def __call__(self, stream: Any, grid: tuple[int, int, int], *values: Any) -> None:
        packed = [np.uintp(_address(value)) if value is None or value.ndim else value for value in values]
        arrays = [np.array([value]) for value in packed]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self._launch(*grid, self._threads, pointers)


class HostFunction(HostKernel):
    """In place of ``app.kernels.launch.training_kernel``. ``folder`` holds what is compiled."""

    folder: Path

    def __init__(self, name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> None:
        super().__init__(self.folder, FOLDER / f"train_{name}.cu", f"train_{name}", defines, threads)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data
