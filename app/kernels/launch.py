"""The one gate through which kernels are launched.

A launch checks nothing by itself: a wrong dtype, a view or a short buffer is silently read as if it were right.
So arguments are checked once, when a kernel is bound to its buffers, and packed once: a launch is then one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import cupy
from cupy_backends.cuda.api import driver

from app.kernels.compiler import compile_kernel
from app.kernels.problems import Argument, Problem
from app.kernels.registry import LaunchConfig, Variant


class Kernel:
    """A compiled variant for one problem, loaded on the current device."""

    def __init__(self, variant: Variant, problem: Problem, arch: str) -> None:
        self.variant = variant
        self.problem = problem
        self.config: LaunchConfig = variant.configure(problem)
        self._module = cupy.cuda.function.Module()
        self._module.load(compile_kernel(variant.source, self.config.defines, arch))
        self.function = self._module.get_function(variant.entry)

    def bind(self, arrays: Sequence[cupy.ndarray | None], images: int) -> Launch:
        """Ready to launch on these arrays, for at most ``images`` images at a time.

        arrays: one per argument of the problem, None for an optional one that is absent. Raises ValueError for a
        wrong count, dtype, size, layout or device: that is a bug, not a user's error.
        """
        arguments = self.problem.arguments()
        if len(arrays) != len(arguments):
            raise ValueError(f"{self.variant.source} takes {len(arguments)} arrays, got {len(arrays)}")
        for array, argument in zip(arrays, arguments, strict=True):
            self._check(array, argument, images)
        return Launch(self, arrays, images)

    def _check(self, array: cupy.ndarray | None, argument: Argument, images: int) -> None:
        where = f"{self.variant.source}, argument {argument.name}"
        if array is None:
            if not argument.optional:
                raise ValueError(f"{where} is missing")
            return
        needed = argument.fixed + argument.per_image * images
        if array.dtype.name != argument.dtype:
            raise ValueError(f"{where} is {array.dtype}, must be {argument.dtype}")
        if array.size < needed:
            raise ValueError(f"{where} holds {array.size} elements, needs {needed}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{where} is not contiguous")
        if array.device.id != cupy.cuda.runtime.getDevice():
            raise ValueError(f"{where} lies on device {array.device.id}, not on the current one")
        if array.data.ptr % 16:
            raise ValueError(f"{where} is not aligned to 16 bytes")


class Launch:
    """A kernel with its arguments packed; call it with a stream pointer and the number of images."""

    def __init__(self, kernel: Kernel, arrays: Sequence[cupy.ndarray | None], images: int) -> None:
        self.kernel = kernel
        self.capacity = images
        self._arrays = arrays  # kept alive as long as their addresses are in use
        self._images = ctypes.c_int(images)
        self._values: list[Any] = [
            *(ctypes.c_void_p(None if array is None else array.data.ptr) for array in arrays),
            self._images,
            *(ctypes.c_int(scalar) for scalar in kernel.config.scalars),
        ]
        addresses = [ctypes.addressof(value) for value in self._values]
        self._packed = (ctypes.c_void_p * len(addresses))(*addresses)
        self._address = ctypes.addressof(self._packed)
        self._function = kernel.function.ptr
        self._threads = kernel.config.threads

    def __call__(self, stream: int, images: int) -> None:
        """Enqueue on the stream for the first ``images`` images of the bound buffers; returns at once."""
        if not 0 < images <= self.capacity:
            raise ValueError(f"{self.kernel.variant.source} is bound for 1 to {self.capacity} images, not {images}")
        self._images.value = images
        grid_x, grid_y = self.kernel.config.grid(images)
        driver.launchKernel(
            self._function, grid_x, grid_y, 1, self._threads, 1, 1, 0, stream, self._address, 0
        )  # fmt: skip
