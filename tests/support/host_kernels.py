"""Run kernels in this process on NumPy arrays, compiled by app/ladder/emulation; also those of training."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.kernels.train.train import FOLDER
from app.ladder.emulation import program
from app.ladder.emulation.program import COMPILER, build_program
from app.layers import Layer, Shape

# The "shared memory" of two kernels must not become one. No other machine runs what this one compiles: with its own
# vectors tensor cores' sums take two thirds of the time, and have the same bits, as no operations are contracted.
FLAGS = ("-shared", "-fPIC", "-fno-gnu-unique", "-march=native")
BUILDS = "LENET_TEST_BUILDS"  # names the folder for what the processes of a test run compile, each thing once
_compile_common_part = program._compile_common_part
MAIN = """\
#include "common.cuh"
#include "{file}"
"""
LAUNCH = """\
extern "C" void launch_{entry}(unsigned x, unsigned y, unsigned z, int threads, unsigned long bytes, unsigned cluster,
                               void **values) {{
    host::launch({entry}, {{{{x, y, z}}, {{unsigned(threads), 1, 1}}, bytes, cluster}}, values);
}}
"""


def guarded(array: np.ndarray) -> np.ndarray:
    """Return a copy that ends less than 16 bytes before inaccessible memory, so that an access beyond it crashes."""
    size = (max(array.nbytes, 1) + 15) // 16 * 16
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + pages), mmap.PAGESIZE, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, pages - size).reshape(array.shape)
    copy[...] = array
    return copy


class Memory:
    """The attributes of a device array's memory that the program reads."""

    def __init__(self, address: int) -> None:
        self.ptr = address

    def copy_from_host_async(self, source: int, nbytes: int, _: Any) -> None:
        ctypes.memmove(self.ptr, source, nbytes)

    def memset(self, value: int, nbytes: int, _: Any = None) -> None:
        ctypes.memset(self.ptr, value, nbytes)

    memset_async = memset


class HostArray(np.ndarray):
    """A host array in place of a device array."""

    @property
    def data(self) -> Any:
        return Memory(self.ctypes.data)

    def get(self, stream: Any = None) -> np.ndarray:
        return np.array(self)


def uploaded(array: np.ndarray) -> HostArray:
    """Replace ``app.cuda.memory.upload``: return a copy of the array."""
    return guarded(array.ravel()).view(HostArray)


def device_array(elements: int, dtype: str) -> HostArray:
    """Replace ``app.cuda.memory.device_array``: return an array of NaN, or of indices outside of any array."""
    return uploaded(np.full(elements * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


class Stream:
    """Replaces CuPy's stream: all work is done at once."""

    ptr = 0
    null: Stream

    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """Do nothing: all work is done already."""


Stream.null = Stream()


def inference_launch(site: Any, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Callable[[int, int], None]:
    """Return the layer's reference in place of the launch of its kernel, which other tests check."""

    def launch(_: int, images: int) -> None:
        inputs = np.array(x[: images * int(np.prod(shape))]).reshape(images, *shape)
        result = layer.reference(inputs, {})
        y[: result.size] = result.ravel()

    return launch


@contextmanager
def on_the_processor() -> Iterator[None]:
    """Run the kernels of training on the processor in the block; an access beyond the end of an input crashes."""
    import cupy

    from app.cuda import memory
    from app.training.gpu import kernels, products, stages, trainer

    skip_without_compiler()
    replaced = {
        "training_kernel": HostFunction,
        "device_array": device_array,
        "upload": uploaded,
        "pinned_array": np.empty,
        "compute_capability": lambda: (9, 0),
        "inference_launch": inference_launch,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda, "Stream", Stream)
        patch.setattr(cupy.cuda, "get_current_stream", lambda: Stream.null)
        for module in (memory, kernels, products, stages, trainer):
            for name in replaced.keys() & vars(module).keys():
                patch.setattr(module, name, replaced[name])
        yield


def skip_without_compiler() -> None:
    """Skip the test where kernels cannot be compiled for the processor."""
    if COMPILER is None:
        pytest.skip("g++ is not installed")


@contextmanager
def _place_of(*what: object) -> Iterator[Path]:
    """Yield, under a lock, the path of a compiled file, which exists at the latest when the block ends."""
    place = Path(os.environ[BUILDS]) / hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place


def compile_shared(compiler: str, flags: Sequence[str]) -> Any:
    """Replace ``program._compile_common_part``: compile the shared parts once for all test processes."""
    with _place_of(compiler, flags) as place:
        if not place.exists():
            shutil.copytree(_compile_common_part(compiler, flags).name, place)
    return SimpleNamespace(name=str(place))


class HostKernel:
    """A kernel, compiled once in a test run; a call with stream, grid and arguments runs it on the processor.

    threads: of a block; shared_bytes: its dynamic shared memory. entries: all kernels of the file that run with these
    constants, if there are several: they are compiled together. library: has the kernel's constant memory by name.
    Skips the test where there is no compiler.
    """

    def __init__(
        self,
        source: Path,
        entry: str,
        defines: Mapping[str, str | int],
        threads: int,
        shared_bytes: int = 0,
        entries: Iterable[str] = (),
    ) -> None:
        skip_without_compiler()
        compiled = sorted({entry, *entries})
        with _place_of(source, compiled, sorted(defines.items())) as place:
            if not place.exists():
                launches = "".join(LAUNCH.format(entry=name) for name in compiled)
                build_program(place, source, MAIN.format(file=source.name) + launches, defines, FLAGS)
        self.library = ctypes.CDLL(str(place / "kernel"))
        self._launch = self.library[f"launch_{entry}"]
        self._sizes = threads, ctypes.c_ulong(shared_bytes)

    def __call__(self, stream: Any, grid: tuple[int, int, int], *values: Any, cluster: int = 1) -> None:
        packed = [np.uintp(_address(value)) if value is None or value.ndim else value for value in values]
        arrays = [np.array([value]) for value in packed]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self._launch(*grid, *self._sizes, cluster, pointers)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


class HostFunction(HostKernel):
    """Replaces ``app.training.gpu.kernels.training_kernel``."""

    def __init__(self, name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> None:
        super().__init__(FOLDER / f"train_{name}.cu", f"train_{name}", defines, threads)
