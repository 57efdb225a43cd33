"""Bind a plan's kernels to a whole batch in page-locked memory, for a CUDA graph that replays it."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import is_pinned, mapped
from app.engine.buffers import Buffers, LoadedPlan, copy
from app.engine.interface import Outputs
from app.kernels.plain_problems import ITEMSIZE
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

ALIGNED = 16  # bytes
# Operations for each byte of an image below which kernels are faster than the bus, which brings some 50 GB/s.
BUS_BOUND = 400


class Direct(Buffers):
    """A whole batch in place: the first kernel reads the images over the bus, the last one writes the labels over it.

    No copies are needed. Raises DeviceMemoryError if the buffers in between do not fit. Use it only if ``serves``
    returns True.
    """

    how = "read by the first kernel"

    def __init__(self, loaded: LoadedPlan, images: np.ndarray, outputs: Outputs) -> None:
        self._count, self._outputs = len(images), outputs
        host = {IMAGES: mapped(images), LABELS: mapped(outputs.labels)}
        super().__init__(loaded, self._count, host)

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

    def __init__(self, loaded: LoadedPlan, images: np.ndarray, outputs: Outputs) -> None:
        self._images, self._outputs = images, outputs
        super().__init__(loaded, len(images), {LABELS: mapped(outputs.labels)})

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
