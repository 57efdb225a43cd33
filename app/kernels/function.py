"""Launch kernels whose arguments change from call to call, for training and measurements."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from app.kernels.launch import LoadedKernel
from app.kernels.variant import Grid

MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65_535  # on every architecture
# An argument: an array is passed by address, None as a null pointer, a NumPy number in its own type.
Value = Any  # cupy.ndarray | numpy scalar | None
C_TYPES: dict[type, Any] = {
    np.int32: ctypes.c_int32,
    np.uint64: ctypes.c_uint64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}


class KernelFunction(LoadedKernel):
    """A loaded kernel, called with a stream, a grid and the arguments."""

    def __init__(self, module: Any, entry: str, **settings: Any) -> None:
        super().__init__(module, entry, **settings)
        self._values: list[Any] = []  # values of the last call
        self._launch: Callable[[int, Grid], None] | None = None

    def __call__(self, stream: Any, grid: Grid, *values: Value) -> None:
        """Enqueue a launch on a CuPy stream and return at once. values: the kernel's arguments.

        The caller must check the arrays' sizes. Raises ValueError for a grid that no GPU can launch. The first call
        fixes the arguments' types: it raises ValueError for an array that is not contiguous, and TypeError for a Python
        number or a host array. Later calls raise ValueError for another number of values, and check no arrays.
        """
        x, y, z = grid
        if not (0 < x <= MAX_GRID_X and 0 < y <= MAX_GRID_YZ and 0 < z <= MAX_GRID_YZ):
            raise ValueError(f"{self.name} cannot be launched on a grid of {grid}")
        if self._launch is None:
            self._values = [_c_value(self.name, value) for value in values]
            self._launch = self.make_launcher(self._values, tuple)
        for place, value in zip(self._values, values, strict=True):
            place.value = value.data.ptr if isinstance(value, cupy.ndarray) else value
        self._launch(stream.ptr, grid)


def _c_value(name: str, value: Value) -> Any:
    """Return an empty ctypes object for arguments of the same type as ``value``. name: the kernel's, for errors."""
    if value is None or isinstance(value, cupy.ndarray):
        if value is not None and not value.flags.c_contiguous:
            raise ValueError(f"{name} takes contiguous arrays")
        return ctypes.c_void_p()
    if type(value) not in C_TYPES:
        raise TypeError(f"{name} takes arrays on the device and numbers of NumPy's types, not {type(value).__name__}")
    return C_TYPES[type(value)]()
