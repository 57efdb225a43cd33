"""A training kernel, compiled for the card, ready to be launched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from app.cuda.compiler import compile_kernel
from app.kernels.train.train import FOLDER

Grid = tuple[int, int, int]
# What a kernel takes: arrays by their address, None as a null pointer, numbers in just the type that it declares.
Value = Any  # cupy.ndarray | numpy scalar | None
NULL = np.uintp(0)


class DeviceFunction:
    """The entry point of app/kernels/train/train_NAME.cu, called as the file, for these compile-time constants.

    threads: of a block.
    """

    def __init__(self, name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> None:
        self.name = name
        self._module = cupy.cuda.function.Module()
        self._module.load(compile_kernel(FOLDER / f"train_{name}.cu", dict(defines), arch))
        self._function = self._module.get_function(f"train_{name}")
        self._threads = (threads, 1, 1)

    def __call__(self, stream: Any, grid: Grid, *values: Value) -> None:
        """Enqueue a launch; returns at once. Nothing is checked: callers make sure of sizes and types."""
        packed = tuple(NULL if value is None else value for value in values)
        self._function(grid, self._threads, packed, 0, stream)  # 0: no dynamic shared memory
