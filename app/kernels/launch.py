"""Check and launch kernels: all launches go through this module.

A launch itself checks nothing: the kernel silently misreads a wrong dtype, a view or a short buffer. Inference checks
and packs arguments once, when it binds a kernel to its buffers; a launch is then one call per action. Training passes
arguments, which change from batch to batch, with each call of a ``KernelFunction`` (``function.py``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from app.cuda.compiler import compile_kernel
from app.cuda.launch_attributes import KEPT_SIZES, make_attributed_launcher, supports_dependent_launch
from app.cuda.memory import device_array
from app.kernels.plain_problems import Argument
from app.kernels.problems import Problem
from app.kernels.variant import (
    STATIC_SHARED_LIMIT,
    Action,
    ConstantCopy,
    Grid,
    KernelLaunch,
    LaunchConfig,
    LibraryGemm,
    Parameters,
    Variant,
)

if TYPE_CHECKING:
    from app.cuda.graphs import KernelGraph

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAX_THREADS = 1024  # per block, on every architecture
EnqueueStep = Callable[[int, int], None]  # enqueues one action, given a stream pointer and a number of images


class Kernel:
    """A variant compiled for one problem. parameters: tunables, by default the variant's. debug: do not optimise."""

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
        self.config: LaunchConfig = variant.launch_config(problem, parameters)
        self._cubin = compile_kernel(variant.path, self.config.defines, arch, debug=debug)

    def load_module(self) -> Any:
        """Return the loaded module: a new copy for each launch that writes constant memory, otherwise a shared one."""
        writes_constants = any(isinstance(action, ConstantCopy) for action in self.config.actions)
        return load_cubin(self._cubin) if writes_constants else self._shared_module

    @cached_property
    def _shared_module(self) -> Any:
        return load_cubin(self._cubin)

    @property
    def is_capturable(self) -> bool:
        """Return whether a CUDA graph can capture the launches; some library calls do not allow it."""
        return not any(isinstance(action, LibraryGemm) for action in self.config.actions)

    def pack(self, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Return ``arrays``, the problem's parameters, packed as the kernel takes them; None for an absent bias."""
        return list(arrays) if self.config.packing is None else self.config.packing.pack(arrays)

    def arguments(self) -> tuple[Argument, ...]:
        """Return the kernel's pointer arguments: the problem's, but with packed parameters."""
        if self.config.packing is None:
            return self.problem.arguments()
        x, *others = self.problem.arguments()
        return x, *self.config.packing.takes, *(argument for argument in others if argument.per_image)

    def bind(self, arrays: Sequence[cupy.ndarray | None], images: int, *, early: bool = True) -> Launch:
        """Return a launch of the kernel on these arrays, for at most ``images`` images.

        arrays: one for each of ``arguments()``, None for an absent optional one. A wrong count, dtype, size, layout or
        device is a bug and raises ValueError. Raises DeviceMemoryError if the workspace does not fit. early: dependent
        kernels start before the previous kernels have ended; False if other streams need the multiprocessors.
        """
        arguments = self.arguments()
        if len(arrays) != len(arguments):
            raise ValueError(f"{self.variant.source} takes {len(arguments)} arrays, got {len(arrays)}")
        for array, argument in zip(arrays, arguments, strict=True):
            if array is not None or not argument.optional:
                self._check_array(array, argument, images)
        return Launch(self, arrays, images, early)

    def _check_array(self, array: cupy.ndarray | None, argument: Argument, images: int) -> None:
        where = f"{self.variant.source}, argument {argument.name}"
        if array is None:
            raise ValueError(f"{where} is missing")
        needed = argument.fixed + argument.per_image * images
        for wrong, how in (
            (array.dtype.name != argument.dtype, f"is {array.dtype}, must be {argument.dtype}"),
            (array.size < needed, f"holds {array.size} elements, needs {needed}"),
            (not array.flags.c_contiguous, "is not contiguous"),
            (array.device.id != runtime.getDevice(), f"lies on device {array.device.id}, not on the current one"),
            (array.data.ptr % 16, "is not aligned to 16 bytes"),
        ):
            if wrong:
                raise ValueError(f"{where} {how}")


class Launch:
    """A kernel bound to its arguments; call it with a stream pointer and the number of images."""

    def __init__(self, kernel: Kernel, arrays: Sequence[cupy.ndarray | None], images: int, early: bool) -> None:
        self.kernel, self.capacity = kernel, images
        config = kernel.config
        self._chunk = min(config.images_at_a_time or images, images)
        self.workspace = [device_array(a.fixed + a.per_image * self._chunk, a.dtype) for a in config.workspace]
        self._arrays = (*arrays, *self.workspace)  # kept alive while their addresses are in use
        self._pointers = [ctypes.c_void_p(None if array is None else array.data.ptr) for array in self._arrays]
        self._images = ctypes.c_int(images)
        arguments = kernel.arguments()
        self._names = dict(zip([a.name for a in (*arguments, *config.workspace)], self._pointers, strict=True))
        # Pointers that advance from chunk to chunk, by argument position: pointer, start address, bytes per image.
        self._moving = {
            place: (pointer, pointer.value, argument.per_image * np.dtype(argument.dtype).itemsize)
            for place, (pointer, argument) in enumerate(zip(self._pointers, arguments, strict=False))
            if argument.per_image and pointer.value is not None
        }
        self._module, self._early = kernel.load_module(), early
        self._advanced = False  # whether the pointers may be those of a later chunk
        self._nodes: list[Callable[[KernelGraph, int], None]] = []  # what adds the kernels to a graph
        self._steps = [self._make_step(action) for action in config.actions]

    def launch_for(self, _images: int) -> Launch:
        """Return the launch itself, which takes any number of images; see ``LaunchByCount``."""
        return self

    def __call__(self, stream: int, images: int) -> None:
        """Enqueue the kernel for the first ``images`` images. stream: a pointer. Raises ValueError for too many."""
        for count in self._iter_chunks(images):
            for step in self._steps:
                step(stream, count)

    def add_to(self, graph: KernelGraph, images: int) -> None:
        """Add the kernels for the first ``images`` images to a graph. Requires ``launches_only_kernels``."""
        for count in self._iter_chunks(images):
            for node in self._nodes:
                node(graph, count)

    @property
    def launches_only_kernels(self) -> bool:
        """Return whether every action launches a kernel, so that ``add_to`` adds the whole launch."""
        return len(self._nodes) == len(self._steps)

    def _iter_chunks(self, images: int) -> Iterable[int]:
        """Divide the images into chunks; for each, set the kernel's arguments and yield its number of images."""
        if self._advanced or not 0 < images <= self._chunk:
            return self._iter_moving_chunks(images)
        self._images.value = images
        return (images,)

    def _iter_moving_chunks(self, images: int) -> Iterator[int]:
        if not 0 < images <= self.capacity:
            raise ValueError(f"{self.kernel.variant.source} is bound for 1 to {self.capacity} images, not {images}")
        self._advanced = True
        for first in range(0, images, self._chunk):
            for pointer, start, stride in self._moving.values():
                pointer.value = start + first * stride
            self._advanced = images > self._chunk
            self._images.value = count = min(self._chunk, images - first)
            yield count

    def set_argument_address(self, place: int, address: int) -> None:
        """Set the device address of argument number ``place``, the images or a result, for later calls.

        The memory must be as large as the bound memory and aligned to 16 bytes; the caller keeps it alive.
        """
        pointer, _, stride = self._moving[place]
        self._moving[place] = pointer, address, stride
        pointer.value = address

    def _make_step(self, action: Action) -> EnqueueStep:
        match action:
            case KernelLaunch():
                return self._make_kernel_step(action)
            case ConstantCopy():
                return self._make_constant_copy_step(action)
            case LibraryGemm():
                from app.kernels.cublas import make_gemm_step  # imported only here: only library rows need it

                return make_gemm_step(action, self._names)

    def _make_kernel_step(self, action: KernelLaunch) -> EnqueueStep:
        entry = LoadedKernel(
            self._module,
            action.entry or self.kernel.variant.entry,
            threads=action.threads,
            block=action.block,
            shared_bytes=action.shared_bytes,
            dependent=action.dependent and self._early,
            cluster=action.cluster,
        )
        grid = _limit_persistent_grid(action.grid) if action.persistent else action.grid
        values = [*self._pointers, self._images, *map(ctypes.c_int, action.scalars)]
        self._nodes.append(entry.make_node_adder(values, grid))
        return entry.make_launcher(values, grid)

    def _make_constant_copy_step(self, action: ConstantCopy) -> EnqueueStep:
        weights, target = self._arrays[1], self._module.get_global_var(action.symbol)
        source, nbytes = weights.data.ptr + action.first * weights.itemsize, action.count * weights.itemsize

        def copy_to_constant(stream: int, _: int) -> None:
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

        return copy_to_constant


def _limit_persistent_grid(grid: Callable[[int], Grid]) -> Callable[[int], Grid]:
    """Return the grid function, limited to one block per multiprocessor of the current device."""
    most = cupy.cuda.Device().attributes["MultiProcessorCount"]
    return lambda images: (min(grid(images)[0], most), 1, 1)


class LoadedKernel:
    """A kernel's function in a loaded module, with its threads per block and dynamic shared memory in bytes.

    block: the threads along x, y and z, if not all along x; such a kernel is neither dependent nor in clusters.
    dependent: it may start before the previous kernel of the stream has ended (``dependent_launch.cuh``). cluster: maps
    the grid's argument to the blocks per cluster (``cluster.cuh``). Raises ValueError for an impossible block.
    """

    def __init__(
        self,
        module: Any,
        entry: str,
        *,
        threads: int,
        block: Grid | None = None,
        shared_bytes: int = 0,
        dependent: bool = False,
        cluster: Callable[[Any], int] | None = None,
    ) -> None:
        if not 0 < threads <= MAX_THREADS or shared_bytes < 0:
            raise ValueError(f"{entry} cannot have {threads} threads and {shared_bytes} bytes of shared memory a block")
        self.name, self._shared_bytes, self._cluster = entry, shared_bytes, cluster
        self._block, self._dependent = block or (threads, 1, 1), dependent and supports_dependent_launch()
        self._function = module.get_function(entry)
        if shared_bytes > STATIC_SHARED_LIMIT:
            driver.funcSetAttribute(self._function.ptr, MAX_DYNAMIC_SHARED, shared_bytes)

    def make_launcher(self, values: Sequence[Any], grid: Callable[[Any], Grid]) -> Callable[[int, Any], None]:
        """Return a function that launches the kernel, given a stream pointer and the argument of ``grid``.

        values: the kernel's arguments, ctypes objects; each launch reads their current contents.
        """
        packed = _value_addresses(values)
        address, handle = ctypes.addressof(packed), self._function.ptr
        block, shared, early = self._block, self._shared_bytes, self._dependent
        alive, grid = (self._function, packed, values), lru_cache(KEPT_SIZES)(grid)  # kept alive by the closure

        def launch(stream: int, grid_argument: Any, _: Any = alive) -> None:
            if (blocks := grid(grid_argument))[0]:
                driver.launchKernel(handle, *blocks, *block, shared, stream, address, 0)

        if not early and self._cluster is None:
            return launch
        sizes = block[0], shared
        return make_attributed_launcher(handle, packed, sizes, grid, self._cluster, launch, dependent=early)

    def make_node_adder(self, values: Sequence[Any], grid: Callable[[int], Grid]) -> Callable[[KernelGraph, int], None]:
        """Return a function that adds a launch with ctypes ``values`` to a graph, given the argument of ``grid``."""
        packed, dependent, cluster = _value_addresses(values), self._dependent, self._cluster

        def add_node(graph: KernelGraph, grid_argument: int) -> None:
            if (blocks := grid(grid_argument))[0]:
                node = self._function.ptr, ctypes.addressof(packed), blocks, self._block, self._shared_bytes
                graph.add_kernel(*node, dependent=dependent, cluster=cluster(grid_argument) if cluster else 1)

        return add_node


def _value_addresses(values: Sequence[Any]) -> ctypes.Array[ctypes.c_void_p]:
    """Return an array of the addresses of ctypes values, for the driver. The caller keeps the values alive."""
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


def load_cubin(cubin: bytes) -> Any:
    """Load machine code (a cubin) in the current CUDA context; return the module."""
    module = cupy.cuda.function.Module()
    module.load(cubin)
    return module
