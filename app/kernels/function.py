"""An entry point of a compiled kernel file: the one place that hands arguments to the driver.

Inference packs a launch's arguments once, when buffers are bound (app/kernels/launch.py); training, whose arguments
change from batch to batch, passes them with each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from app.cuda.compiler import compile_kernel
from app.kernels.train.train import FOLDER
from app.kernels.variant import STATIC_SHARED_LIMIT, Grid

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAX_THREADS = 1024  # of a block; this and the grid's limits hold on every architecture
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65_535
# An argument: an array by its address, None as a null pointer, a number in just the type that the kernel declares.
Value = Any  # cupy.ndarray | numpy scalar | None
C_TYPES: dict[type, Any] = {
    np.int32: ctypes.c_int32,
    np.uint64: ctypes.c_uint64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}


class Function:
    """A kernel in a loaded module with its block size and dynamic shared memory, in bytes.

    Raises ValueError for a block that no card can launch.
    """

    def __init__(self, module: Any, entry: str, *, threads: int, shared_bytes: int = 0) -> None:
        if not 0 < threads <= MAX_THREADS or shared_bytes < 0:
            raise ValueError(f"{entry} cannot have {threads} threads and {shared_bytes} bytes of shared memory a block")
        self.name = entry
        self._threads, self._shared_bytes = threads, shared_bytes
        self._function = module.get_function(entry)
        if shared_bytes > STATIC_SHARED_LIMIT:
            driver.funcSetAttribute(self._function.ptr, MAX_DYNAMIC_SHARED, shared_bytes)
        self._values: list[Any] = []  # of the last call
        self._launch: Callable[[int, Grid], None] | None = None

    def bound(self, values: Sequence[Any], grid: Callable[[Any], Grid]) -> Callable[[int, Any], None]:
        """Pack ctypes ``values``; the result enqueues a launch, given a stream pointer and what ``grid`` takes.

        A launch reads what the values hold at that time.
        """
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        address, handle = ctypes.addressof(packed), self._function.ptr
        threads, shared = self._threads, self._shared_bytes
        alive = (self._function, packed, values)  # the closure keeps them as long as the launch

        def launch(stream: int, size: Any, _: Any = alive) -> None:
            driver.launchKernel(handle, *grid(size), threads, 1, 1, shared, stream, address, 0)

        return launch

    def __call__(self, stream: Any, grid: Grid, *values: Value) -> None:
        """Enqueue a launch on a CuPy stream; returns at once. Sizes of arrays are the caller's to check.

        Raises ValueError for a grid that no card can launch, for an array with gaps, and for another number of values
        than in the first call; TypeError for a Python number or host array: neither is what the kernel declares.
        """
        x, y, z = grid
        if not (0 < x <= MAX_GRID_X and 0 < y <= MAX_GRID_YZ and 0 < z <= MAX_GRID_YZ):
            raise ValueError(f"{self.name} cannot be launched on a grid of {grid}")
        if self._launch is None:
            self._values = [_c_value(self.name, value) for value in values]
            self._launch = self.bound(self._values, tuple)
        for place, value in zip(self._values, values, strict=True):
            place.value = value.data.ptr if isinstance(value, cupy.ndarray) else value
        self._launch(stream.ptr, grid)


def _c_value(name: str, value: Value) -> Any:
    """The ctypes object that holds such a value from call to call."""
    if value is None or isinstance(value, cupy.ndarray):
        if value is not None and not value.flags.c_contiguous:
            raise ValueError(f"{name} takes contiguous arrays")
        return ctypes.c_void_p()
    if type(value) not in C_TYPES:
        raise TypeError(f"{name} takes arrays on the device and numbers of NumPy's types, not {type(value).__name__}")
    return C_TYPES[type(value)]()


def loaded(cubin: bytes) -> Any:
    """The machine code as a module in the current context."""
    module = cupy.cuda.function.Module()
    module.load(cubin)
    return module


def training_kernel(name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> Function:
    """Compile train/train_NAME.cu with these compile-time constants and load it; may raise as ``compile_kernel``."""
    module = loaded(compile_kernel(FOLDER / f"train_{name}.cu", dict(defines), arch))
    return Function(module, f"train_{name}", threads=threads)
