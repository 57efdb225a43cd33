"""Bind a plan's kernels and weights to the device buffers of one stream, or to a whole batch in host memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import device_array, is_pinned, map_to_device, pinned_array, upload
from app.engine.interface import Outputs
from app.kernels.launch import Kernel, Launch
from app.kernels.plain_problems import ITEMSIZE
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

if TYPE_CHECKING:
    from app.engine.copying import Copy
    from app.kernels.by_count import AnyLaunch

Weights = list["cupy.ndarray | None"]  # packed, on the device
# Called before and after each step of a chunk is enqueued: copy in, kernels, copy out.
Mark = Callable[["StreamBuffers"], None]


class LoadedPlan:
    """Kernels and packed weights of a plan, loaded on the current GPU. Launches on different buffers share them."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.kernels = [Kernel(node.variant, node.problem, plan.arch, node.settings) for node in plan.nodes]
        self.weights = [
            _upload_packed(kernel, node.parameters) for kernel, node in zip(self.kernels, plan.nodes, strict=True)
        ]
        self._for_few: list[list[tuple[Kernel, Weights]]] = []  # for each node
        for node, many, weights in zip(plan.nodes, self.kernels, self.weights, strict=True):
            kernels = [Kernel(few.variant, node.problem, plan.arch, few.settings) for few in node.few]
            shared = [many.config.packing is None and kernel.config.packing is None for kernel in kernels]
            self._for_few.append(
                [
                    (kernel, weights if same else _upload_packed(kernel, node.parameters))
                    for kernel, same in zip(kernels, shared, strict=True)
                ]
            )

    def bind(self, at: int, buffers: Mapping[str, cupy.ndarray], images: int, *, early: bool) -> AnyLaunch:
        """Return a launch, on these buffers (name → array), of the plan's node with the index ``at``.

        images: the most per launch; if the node has several kernels, a launch selects one by its number of images.
        early: whether kernels may start before the previous kernel of the stream has ended.
        """
        node = self.plan.nodes[at]

        def bind_kernel(kernel: Kernel, weights: Weights) -> Launch:
            arrays = [buffers[node.reads], *weights, *(buffers[name] for name in node.writes)]
            return kernel.bind(arrays, images, early=early)

        most = [few.most for few in node.few]
        needed = [*self._for_few[at], (self.kernels[at], self.weights[at])][: bisect_left(most, images) + 1]
        launches = [bind_kernel(*one) for one in needed]
        if len(launches) == 1:
            return launches[0]
        from app.kernels.by_count import LaunchByCount  # imported only here: few plans have several kernels for a node

        return LaunchByCount(launches, most[: len(launches) - 1])

    @property
    def is_capturable(self) -> bool:
        """Return whether a CUDA graph can capture the launches of all kernels."""
        return all(kernel.is_capturable for kernel in self.kernels)  # those for few images all are

    @property
    def nbytes(self) -> int:
        """Return the bytes of device memory that the weights occupy."""
        packed = (*self.weights, *(weights for few in self._for_few for _, weights in few))
        once = {id(array): array for arrays in packed for array in arrays if array is not None}
        return sum(array.nbytes for array in once.values())

    def free(self) -> None:
        """Drop the references to kernels and weights, which frees their device memory."""
        self.kernels, self.weights, self._for_few = [], [], []


def _upload_packed(kernel: Kernel, parameters: Sequence[np.ndarray | None]) -> Weights:
    """Pack a node's parameters into the arrays that the kernel takes, and upload them."""
    return [None if array is None else upload(array) for array in kernel.pack(parameters)]


class Buffers:
    """A plan's kernels, bound to buffers for up to ``images`` images.

    host: name → buffer in page-locked host memory. named: name → buffer allocated on the device, for all others of
    ``plan.buffers``. early: whether kernels may start before the previous kernel of the stream has ended.
    """

    def __init__(
        self, loaded: LoadedPlan, images: int, host: Mapping[str, cupy.ndarray], *, early: bool = True
    ) -> None:
        plan = loaded.plan
        self.named = {
            name: device_array(images * n, dtype) for name, (dtype, n) in plan.buffers.items() if name not in host
        }
        buffers = {**host, **self.named}
        self.launches = [loaded.bind(at, buffers, images, early=early) for at in range(len(plan.nodes))]

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """Return all device arrays that a run writes: the buffers and the kernels' workspaces."""
        return [*self.named.values(), *(array for launch in self.launches for array in launch.workspace)]

    @property
    def nbytes(self) -> int:
        """Return the bytes of device memory that buffers and workspaces occupy."""
        return sum(array.nbytes for array in self.arrays)

    def copy_in(self, images: np.ndarray, stream: int) -> None:
        """Enqueue the copy of page-locked images, (n, C, H, W), to the device. stream: a pointer."""
        target, copy = self.named[IMAGES].data.ptr, runtime.memcpyAsync
        copy(target, images.ctypes.data, images.nbytes, runtime.memcpyHostToDevice, stream)

    def enqueue_kernels(self, images: int, stream: int) -> None:
        """Enqueue the kernels for the first ``images`` images. stream: a pointer."""
        for launch in self.launches:
            launch.launch_for(images)(stream, images)

    def copy_out(self, outputs: Outputs, stream: int) -> None:
        """Enqueue copies of results in ``named`` to the arrays of ``outputs``, on host or device. stream: a pointer."""
        results: tuple[tuple[str, Any], ...] = (LABELS, outputs.labels), (LOGITS, outputs.logits)
        for name, rows in results:
            if rows is not None and name in self.named:
                source, to_host = self.named[name].data.ptr, isinstance(rows, np.ndarray)
                target = rows.ctypes.data if to_host else rows.data.ptr
                direction = runtime.memcpyDeviceToHost if to_host else runtime.memcpyDeviceToDevice
                runtime.memcpyAsync(target, source, rows.nbytes, direction, stream)


class StreamBuffers(Buffers):
    """A stream, its device buffers and the kernels bound to them, for chunks of up to ``chunk`` images."""

    def __init__(self, loaded: LoadedPlan, chunk: int, *, early: bool = True) -> None:
        super().__init__(loaded, chunk, {}, early=early)
        self.chunk = chunk
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.copied = cupy.cuda.Event(disable_timing=True)  # recorded once the staging buffer has been copied
        self.staging: np.ndarray | None = None

    def copy_to_staging(self, images: np.ndarray, copy: Copy = np.copyto) -> np.ndarray:
        """Wait until the page-locked staging buffer is free, call ``copy(buffer, images)``, return the filled rows."""
        staging, self.staging = self.staging, None  # after an exception, helpers may still write to it
        if staging is None:
            staging = pinned_array((self.chunk, *images.shape[1:]), images.dtype)
        self.copied.synchronize()
        staged = staging[: len(images)]
        copy(staged, images)
        self.staging = staging
        return staged

    def enqueue(self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None, *, staged: bool = False) -> None:
        """Enqueue the copy in, the kernels and the copy out of at most ``chunk`` page-locked images; return at once.

        outputs: page-locked arrays for as many images. mark: called with this object before each of the three
        steps and after the last. staged: the images are in the staging buffer.
        """
        stream = self.stream.ptr
        if mark:
            mark(self)
        self.copy_in(images, stream)
        if staged:
            self.copied.record(self.stream)
        if mark:
            mark(self)
        self.enqueue_kernels(len(images), stream)
        if mark:
            mark(self)
        self.copy_out(outputs, stream)
        if mark:
            mark(self)


def fork_streams(streams: Sequence[StreamBuffers], submit: Callable[[], None], origin: cupy.cuda.Stream) -> None:
    """Let ``submit`` enqueue work on the streams: after the earlier work on ``origin``, and before later work there.

    A capture of ``origin`` includes the work that ``submit`` enqueues.
    """
    fork = cupy.cuda.Event(disable_timing=True)
    fork.record(origin)
    for buffers in streams:
        buffers.stream.wait_event(fork)
    submit()
    for buffers in streams:
        join = cupy.cuda.Event(disable_timing=True)
        join.record(buffers.stream)
        origin.wait_event(join)


ALIGNED = 16  # bytes: kernels load images in vectors of this size
# Networks with fewer FLOPs per input byte are limited by the bus, which copies some 50 GB/s, not by their kernels.
BUS_BOUND = 400
DIRECT, AT_ONCE = "read by the first kernel", "copied at once"  # how a replayed batch reaches the card


class WholeBatchBuffers(Buffers):
    """Buffers for a whole page-locked batch, to capture as a CUDA graph. The last kernel writes labels over the bus.

    direct: the first kernel also reads the images over the bus. Otherwise one copy transfers all images: if the copy
    takes longer than the kernels, cutting it into chunks costs more than the overlap gains. Raises DeviceMemoryError if
    the buffers do not fit. Use this class only if ``can_replay_arrays`` returns True.
    """

    def __init__(self, loaded: LoadedPlan, images: np.ndarray, outputs: Outputs, *, direct: bool) -> None:
        self._images, self._outputs, self._direct = images, outputs.slice_view(slice(0, len(images))), direct
        self.how = DIRECT if direct else AT_ONCE
        host = {LABELS: map_to_device(outputs.labels)} | ({IMAGES: map_to_device(images)} if direct else {})
        super().__init__(loaded, len(images), host)

    @staticmethod
    def can_replay_arrays(plan: ExecutionPlan, arrays: Sequence[np.ndarray], *, direct: bool) -> bool:
        """Return whether a CUDA graph can process these arrays, images and outputs, without chunks.

        The arrays must be page-locked and aligned to 16 bytes. With ``direct``, the first kernel must read host memory;
        otherwise the copy must take longer than the kernels.
        """
        dtype, elements = plan.buffers[IMAGES]
        operations = sum(node.flops for node in plan.nodes) / (elements * ITEMSIZE[dtype])
        suits = plan.nodes[0].variant.reads_host if direct else operations < BUS_BOUND
        return suits and all(is_pinned(array) and array.ctypes.data % ALIGNED == 0 for array in arrays)

    def enqueue(self, stream: cupy.cuda.Stream) -> None:
        """Enqueue the batch and return at once. Logits are copied, as kernels' small stores are slow over the bus."""
        if not self._direct:
            self.copy_in(self._images, stream.ptr)
        self.enqueue_kernels(len(self._images), stream.ptr)
        self.copy_out(self._outputs, stream.ptr)


def next_power_of_two(count: int, least: int) -> int:
    """Return the smallest power of two that is at least ``count`` and ``least``: such buffers seldom need to grow."""
    return 1 << (max(count, least) - 1).bit_length()


def chunk_slices(count: int, chunk: int) -> Iterator[slice]:
    """Yield slices of ``count`` images: one if ``chunk`` holds all; else half chunks at both ends, equal ones between.

    The ends are short because nothing overlaps the copy of the first chunk or the kernels of the last one.
    """
    if count <= chunk:
        yield slice(0, count)
        return
    half = -(-chunk // 2)
    yield slice(0, half)
    yield from equal_chunk_slices(half, count - half, chunk)
    yield slice(count - half, count)


def equal_chunk_slices(start: int, stop: int, chunk: int) -> Iterator[slice]:
    """Yield the fewest slices of at most ``chunk`` images from start to stop. Their lengths differ by at most one."""
    count, many = stop - start, -(-(stop - start) // chunk)
    for i in range(many):
        yield slice(start + count * i // many, start + count * (i + 1) // many)
