"""Bind a plan's kernels to buffers: to those of a stream, filled by copies of chunks, or to host memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import device_array, is_pinned, mapped, pinned_array
from app.kernels.launch import Kernel, Launch
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

Weights = Sequence[Sequence[Any]]  # device arrays for each node of a plan


def copy(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
    """Enqueue a copy between two addresses. direction: the runtime API's constant."""
    runtime.memcpyAsync(target, source, nbytes, direction, stream)


class Buffers:
    """A plan's kernels, bound for up to ``images`` images to buffers on the device and to those in ``host``.

    named: the buffers on the device, by the plan's names.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        kernels: Sequence[Kernel],
        weights: Weights,
        images: int,
        host: Mapping[str, cupy.ndarray],
    ) -> None:
        self.named = {
            name: device_array(images * n, dtype) for name, (dtype, n) in plan.buffers.items() if name not in host
        }
        buffers = {**host, **self.named}
        self.launches: list[Launch] = [
            kernel.bind([buffers[node.reads], *arrays, *(buffers[name] for name in node.writes)], images)
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
    """One stream with its own device buffers and the kernels bound to them, for chunks of up to ``chunk`` images."""

    def __init__(self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, chunk: int) -> None:
        super().__init__(plan, kernels, weights, chunk, {})
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


@dataclass(frozen=True)
class Outputs:
    """Page-locked host arrays for results: labels (N) uint8; logits (N, classes) or None."""

    labels: np.ndarray
    logits: np.ndarray | None = None


class Direct(Buffers):
    """A whole batch in place: the first kernel reads the images over the bus, the last one writes the labels over it.

    No copies are needed. Raises DeviceMemoryError if the buffers in between do not fit. Use it only if ``serves``
    returns True.
    """

    def __init__(
        self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, images: np.ndarray, outputs: Outputs
    ) -> None:
        self._count, self._outputs = len(images), outputs
        host = {IMAGES: mapped(images), LABELS: mapped(outputs.labels)}
        super().__init__(plan, kernels, weights, self._count, host)

    @staticmethod
    def serves(plan: ExecutionPlan, arrays: Sequence[np.ndarray]) -> bool:
        """Return whether the first kernel can read host memory, and the arrays are page-locked and 16-byte aligned."""
        return plan.nodes[0].variant.reads_host and all(is_pinned(a) and a.ctypes.data % 16 == 0 for a in arrays)

    def enqueue(self, stream: cupy.cuda.Stream) -> None:
        """Enqueue the batch on one stream and return at once."""
        for launch in self.launches:
            launch(stream.ptr, self._count)
        logits = self._outputs.logits
        if logits is not None:  # kernels write the many logits in pieces too small for the bus
            rows = logits[: self._count]
            copy(rows.ctypes.data, self.named[LOGITS].data.ptr, rows.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
