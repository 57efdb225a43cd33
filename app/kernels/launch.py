"""The one gate through which kernels are launched.

A launch checks nothing by itself: a wrong dtype, a view or a short buffer is silently read as if it were right.
So arguments are checked once, when a kernel is bound to its buffers, and packed once: a launch is then one call
an action.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.compiler import compile_kernel
from app.cuda.graph_capture import DEVICE_WIDE
from app.cuda.memory import device_array
from app.errors import UserError
from app.kernels.function import Function, loaded
from app.kernels.problems import Argument, Problem
from app.kernels.variant import (
    Action,
    ConstantCopy,
    Grid,
    KernelLaunch,
    LaunchConfig,
    LibraryGemm,
    Parameters,
    Variant,
)

Step = Callable[[int, int], None]  # enqueues one action: stream pointer, images


class Kernel:
    """A compiled variant for one problem on the current device. debug: compiled without optimisation."""

    def __init__(
        self,
        variant: Variant,
        problem: Problem,
        arch: str,
        parameters: Parameters | None = None,
        *,
        debug: bool = False,
    ) -> None:
        self.variant = variant
        self.problem = problem
        self.config: LaunchConfig = variant.config(problem, parameters)
        self._cubin = compile_kernel(variant.path, self.config.defines, arch, debug=debug)

    def module(self) -> Any:
        """The loaded code; a copy of its own for each launch where constant memory is written."""
        own = any(isinstance(action, ConstantCopy) for action in self.config.actions)
        return loaded(self._cubin) if own else self._shared

    @cached_property
    def _shared(self) -> Any:
        return loaded(self._cubin)

    @property
    def capturable(self) -> bool:
        """Whether launches can become part of a CUDA graph: a library's cannot be relied on to."""
        return not any(isinstance(action, LibraryGemm) for action in self.config.actions)

    def pack(self, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Convert the problem's parameters to the arrays that the kernel takes."""
        return list(arrays) if self.config.packing is None else self.config.packing.pack(arrays)

    def arguments(self) -> tuple[Argument, ...]:
        """The problem's arguments, with its parameters as packed."""
        if self.config.packing is None:
            return self.problem.arguments()
        x, *others = self.problem.arguments()
        return x, *self.config.packing.takes, *(argument for argument in others if argument.per_image)

    def bind(self, arrays: Sequence[cupy.ndarray | None], images: int) -> Launch:
        """Ready to launch on these arrays, for at most ``images`` images at a time.

        arrays: one per argument of the problem, None for an optional one that is absent. Raises ValueError for a
        wrong count, dtype, size, layout or device: that is a bug, not a user's error. Raises DeviceMemoryError if
        the workspace does not fit.
        """
        arguments = self.arguments()
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
        config = kernel.config
        self._piece = min(config.images_at_a_time or images, images)
        self.workspace = [device_array(a.fixed + a.per_image * self._piece, a.dtype) for a in config.workspace]
        self._arrays = (*arrays, *self.workspace)  # kept alive as long as their addresses are in use
        self._pointers = [ctypes.c_void_p(None if array is None else array.data.ptr) for array in self._arrays]
        self._images = ctypes.c_int(images)
        arguments = kernel.arguments()
        self._names = dict(zip([a.name for a in (*arguments, *config.workspace)], self._pointers, strict=True))
        # What moves along from piece to piece: the pointer, where it starts, bytes an image.
        self._moving = [
            (pointer, pointer.value, argument.per_image * np.dtype(argument.dtype).itemsize)
            for pointer, argument in zip(self._pointers, arguments, strict=False)
            if argument.per_image and pointer.value is not None
        ]
        self._module = kernel.module()
        self._steps = [self._step(action) for action in config.actions]

    @property
    def nbytes(self) -> int:
        """Device memory of the workspace."""
        return sum(array.nbytes for array in self.workspace)

    def __call__(self, stream: int, images: int) -> None:
        """Enqueue on the stream for the first ``images`` images of the bound buffers; returns at once."""
        if not 0 < images <= self.capacity:
            raise ValueError(f"{self.kernel.variant.source} is bound for 1 to {self.capacity} images, not {images}")
        for first in range(0, images, self._piece):
            count = min(self._piece, images - first)
            for pointer, start, stride in self._moving:
                pointer.value = start + first * stride
            self._images.value = count
            for step in self._steps:
                step(stream, count)

    def _step(self, action: Action) -> Step:
        match action:
            case KernelLaunch():
                return self._kernel_step(action)
            case ConstantCopy():
                return self._constant_step(action)
            case LibraryGemm():
                return self._gemm_step(action)

    def _kernel_step(self, action: KernelLaunch) -> Step:
        entry = action.entry or self.kernel.variant.entry
        function = Function(self._module, entry, threads=action.threads, shared_bytes=action.shared_bytes)
        scalars = [ctypes.c_int(scalar) for scalar in action.scalars]
        grid = _persistent(action.grid) if action.persistent else action.grid
        return function.bound([*self._pointers, self._images, *scalars], grid)

    def _constant_step(self, action: ConstantCopy) -> Step:
        weights = self._arrays[1]
        target = self._module.get_global_var(action.symbol)
        source = weights.data.ptr + action.first * weights.itemsize
        nbytes = action.count * weights.itemsize

        def step(stream: int, _: int) -> None:
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

        return step

    def _gemm_step(self, action: LibraryGemm) -> Step:
        handle = _Handle()
        a, b, c = (self._names[name] for name in (action.a, action.b, action.c))
        one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

        def step(stream: int, images: int) -> None:
            m, n, k = action.sizes(images)
            # The binding takes CuPy's current stream, not the handle's.
            with cupy.cuda.Stream.from_external(_Borrowed(stream)):
                # cuBLAS is column-major: what it computes is cᵀ = bᵀ aᵀ.
                handle.library.sgemm(
                    *(handle.value, handle.library.CUBLAS_OP_N, handle.library.CUBLAS_OP_N, n, m, k),
                    *(one.ctypes.data, b.value, n, a.value, k, zero.ctypes.data, c.value, n),
                )

        return step


def _persistent(grid: Callable[[int], Grid]) -> Callable[[int], Grid]:
    """The grid, cut to one block for each of the current device's multiprocessors."""
    most = cupy.cuda.Device().attributes["MultiProcessorCount"]
    return lambda images: (min(grid(images)[0], most), 1, 1)


class _Borrowed:
    """Somebody else's stream, by its pointer, in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, pointer."""
        return 0, self._pointer


class _Handle:
    """CuPy's cuBLAS binding, and a handle of a launch's own: its workspace is shared with no other stream.

    Making and destroying one waits for the device.
    Raises UserError if the library is not installed.
    """

    def __init__(self) -> None:
        try:
            from cupy_backends.cuda.libs import cublas

            self.library = cublas
            with DEVICE_WIDE:
                self.value = cublas.create()
        except Exception as error:  # CuPy reports a missing library in several ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"cuBLAS cannot be loaded ({reason}): pip install -e '.[bench]'") from None

    def __del__(self) -> None:
        with suppress(Exception), DEVICE_WIDE:  # there may be no handle, and at the end of the program no library
            self.library.destroy(self.value)
