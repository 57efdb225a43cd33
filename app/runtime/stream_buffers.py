"""Bind a plan's kernels to buffers: to those of a stream, filled by copies of chunks, or to host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import device_array, is_pinned, mapped, pinned_array
from app.kernels.launch import Kernel, Launch
from app.kernels.plain_problems import ITEMSIZE
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

ALIGNED = 16  # bytes
# Operations for each byte of an image below which kernels are faster than the bus, which brings some 50 GB/s.
BUS_BOUND = 400
Weights = Sequence[Sequence[Any]]  # device arrays for each node of a plan
# Called before and after each of copy in, kernels and copy out of a chunk is enqueued.
Mark = Callable[["StreamBuffers"], None]


def copy(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
    """Enqueue a copy between two addresses. direction: the runtime API's constant."""
    runtime.memcpyAsync(target, source, nbytes, direction, stream)


class Buffers:
    """A plan's kernels, bound for up to ``images`` images to buffers on the device and to those in ``host``.

    named: the buffers on the device, by the plan's names. early: as for ``Kernel.bind``.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        kernels: Sequence[Kernel],
        weights: Weights,
        images: int,
        host: Mapping[str, cupy.ndarray],
        *,
        early: bool = True,
    ) -> None:
        self.named = {
            name: device_array(images * n, dtype) for name, (dtype, n) in plan.buffers.items() if name not in host
        }
        buffers = {**host, **self.named}
        self.launches: list[Launch] = [
            kernel.bind([buffers[node.reads], *arrays, *(buffers[name] for name in node.writes)], images, early=early)
            for node, kernel, arrays in zip(plan.nodes, kernels, weights, strict=True)
        ]

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """All device arrays that a run writes: the buffers and the kernels' workspaces."""
        return [*self.named.values(), *(array for launch in self.launches for array in launch.workspace)]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(array.nbytes for array in self.arrays)


class StreamBuffers(Buffers):
    """One stream with its own device buffers and the kernels bound to them, for chunks of up to ``chunk`` images.

    early: as for ``Kernel.bind``.
    """

    def __init__(
        self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, chunk: int, *, early: bool = True
    ) -> None:
        super().__init__(plan, kernels, weights, chunk, {}, early=early)
        self.chunk = chunk
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.copied = cupy.cuda.Event(disable_timing=True)  # the staging buffer has been read
        self.staging: np.ndarray | None = None

    def stage(self, images: np.ndarray) -> np.ndarray:
        """Copy the images into the page-locked staging buffer once it is free; return the copy."""
        if self.staging is None:
            self.staging = pinned_array((self.chunk, *images.shape[1:]), images.dtype)
        self.copied.synchronize()
        staged = self.staging[: len(images)]
        np.copyto(staged, images)
        return staged

    def enqueue(self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None, *, staged: bool = False) -> None:
        """Enqueue copy in, kernels and copy out of page-locked images, at most ``chunk``, and return at once.

        outputs: page-locked arrays for as many images. staged: the images lie in the staging buffer.
        """
        stream = self.stream.ptr
        if mark:
            mark(self)
        copy(self.named[IMAGES].data.ptr, images.ctypes.data, images.nbytes, runtime.memcpyHostToDevice, stream)
        if staged:
            self.copied.record(self.stream)
        if mark:
            mark(self)
        for launch in self.launches:
            launch(stream, len(images))
        if mark:
            mark(self)
        for name, rows in ((LABELS, outputs.labels), (LOGITS, outputs.logits)):
            if rows is not None:
                copy(rows.ctypes.data, self.named[name].data.ptr, rows.nbytes, runtime.memcpyDeviceToHost, stream)
        if mark:
            mark(self)


@dataclass(frozen=True)
class Outputs:
    """Page-locked host arrays for results: labels (N) uint8; logits (N, classes) or None."""

    labels: np.ndarray
    logits: np.ndarray | None = None

    def of(self, part: slice) -> Outputs:
        """Return the rows of some images."""
        return Outputs(self.labels[part], None if self.logits is None else self.logits[part])


class Direct(Buffers):
    """A whole batch in place: the first kernel reads the images over the bus, the last one writes the labels over it.

    No copies are needed. Raises DeviceMemoryError if the buffers in between do not fit. Use it only if ``serves``
    returns True.
    """

    how = "read by the first kernel"

    def __init__(
        self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, images: np.ndarray, outputs: Outputs
    ) -> None:
        self._count, self._outputs = len(images), outputs
        host = {IMAGES: mapped(images), LABELS: mapped(outputs.labels)}
        super().__init__(plan, kernels, weights, self._count, host)

    @staticmethod
    def serves(plan: ExecutionPlan, arrays: Sequence[np.ndarray]) -> bool:
        """Return whether the first kernel can read host memory, and the arrays are page-locked and 16-byte aligned."""
        return plan.nodes[0].variant.reads_host and in_reach(arrays)

    def enqueue(self, stream: cupy.cuda.Stream) -> None:
        """Enqueue the batch on one stream and return at once."""
        for launch in self.launches:
            launch(stream.ptr, self._count)
        copy_logits(self, self._outputs, self._count, stream)


class AtOnce(Buffers):
    """A whole batch in one copy, then the kernels; the last one writes the labels over the bus.

    For networks whose kernels take less time than the copy: to cut it up costs more than its overlap gains. Raises
    DeviceMemoryError if the buffers do not fit. Use it only if ``serves`` returns True.
    """

    how = "copied at once"

    def __init__(
        self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, images: np.ndarray, outputs: Outputs
    ) -> None:
        self._images, self._outputs = images, outputs
        super().__init__(plan, kernels, weights, len(images), {LABELS: mapped(outputs.labels)})

    @staticmethod
    def serves(plan: ExecutionPlan, arrays: Sequence[np.ndarray]) -> bool:
        """Return whether the copy dominates, and the arrays are page-locked and 16-byte aligned."""
        dtype, elements = plan.buffers[IMAGES]
        operations = sum(node.flops for node in plan.nodes) / (elements * ITEMSIZE[dtype])
        return operations < BUS_BOUND and in_reach(arrays)

    def enqueue(self, stream: cupy.cuda.Stream) -> None:
        """Enqueue the batch on one stream and return at once."""
        source, target = self._images, self.named[IMAGES].data.ptr
        copy(target, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        for launch in self.launches:
            launch(stream.ptr, len(source))
        copy_logits(self, self._outputs, len(source), stream)


def in_reach(arrays: Sequence[np.ndarray]) -> bool:
    """Return whether kernels can read and write these host arrays: they are page-locked and 16-byte aligned."""
    return all(is_pinned(array) and array.ctypes.data % ALIGNED == 0 for array in arrays)


def copy_logits(buffers: Buffers, outputs: Outputs, count: int, stream: cupy.cuda.Stream) -> None:
    """Enqueue the copy of the logits, if they are wanted: kernels write them in pieces too small for the bus."""
    if outputs.logits is not None:
        rows = outputs.logits[:count]
        copy(rows.ctypes.data, buffers.named[LOGITS].data.ptr, rows.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
