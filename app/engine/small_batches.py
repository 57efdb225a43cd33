"""Run small batches of ordinary arrays, in one piece and mostly by one call: a graph of kernels for each size.

A graph's size is a power of two or three quarters of one. It computes as many images; those beyond the batch are left
over from earlier ones, and their results are not read.
"""

from __future__ import annotations

import cupy
import numpy as np

from app.cuda.kernel_graph import KernelGraph
from app.cuda.memory import DeviceMemoryError, map_to_device, pinned_array
from app.engine.buffers import Buffers, LoadedPlan, rounded_up
from app.engine.interface import Outputs
from app.planning.plan import IMAGES, LABELS, LOGITS

MOST = 1024  # images; of larger batches, chunks hide the copies
LEAST = 64  # capacity of the first buffers


def graph_size(count: int) -> int:
    """Return the images that the graph for ``count`` of them computes."""
    power = rounded_up(count, 1)
    return 3 * power // 4 if power >= 4 and count <= 3 * power // 4 else power


class SmallBatches:
    """Run batches of up to ``most`` images, in buffers that grow with the batches, and wait for the results."""

    def __init__(self, loaded: LoadedPlan) -> None:
        self.most = MOST  # images; lowered where device memory is short
        self._loaded = loaded
        self._buffers: _SmallBuffers | None = None

    def run(self, images: np.ndarray) -> Outputs | None:
        """Classify (N, C, H, W) images; return results in pageable memory, or None if the buffers do not fit.

        images: of the plan's input dtype.
        """
        if self._buffers is None or self._buffers.capacity < len(images):
            self.free()
            capacity = rounded_up(len(images), LEAST)
            try:
                self._buffers = _SmallBuffers(self._loaded, capacity)
            except DeviceMemoryError:
                self.most = len(images) - 1
                return None
        return self._buffers.run(images)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the buffers occupy."""
        return 0 if self._buffers is None else self._buffers.nbytes

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """All device arrays that a run writes."""
        return [] if self._buffers is None else self._buffers.arrays

    def free(self) -> None:
        """Free buffers and graphs."""
        if self._buffers is not None:
            self._buffers.free()
        self._buffers = None


class _SmallBuffers(Buffers):
    """Buffers and graphs for up to ``capacity`` images. Kernels write results over the bus.

    If the first kernel can read images over the bus, nothing copies them to the device. Raises DeviceMemoryError if the
    buffers do not fit.
    """

    def __init__(self, loaded: LoadedPlan, capacity: int) -> None:
        plan = loaded.plan
        scores, classes = plan.buffers[LOGITS]
        self.capacity = capacity
        self._images = pinned_array((capacity, *plan.input_shape), plan.input_dtype)
        labels, logits = pinned_array((capacity,), np.uint8), pinned_array((capacity, classes), scores)
        self._results = Outputs(labels, logits)
        self._copied = not plan.nodes[0].variant.reads_host
        host = {LABELS: map_to_device(labels), LOGITS: map_to_device(logits)}
        super().__init__(loaded, capacity, host if self._copied else host | {IMAGES: map_to_device(self._images)})
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._graphs: dict[int, KernelGraph] = {}
        self._graphed = all(launch.all_kernels for launch in self.launches)

    def run(self, images: np.ndarray) -> Outputs:
        """As ``SmallBatches.run``."""
        count, stream = len(images), self._stream.ptr
        given = self._images[:count]
        given[...] = images.reshape(given.shape)
        if self._copied:
            self.copy_in(given, stream)
        if self._graphed:
            self._graph(graph_size(count)).launch(stream)
        else:
            self.compute(count, stream)
        self._stream.synchronize()
        return self._results.of(slice(0, count)).copy()

    def _graph(self, size: int) -> KernelGraph:
        if size not in self._graphs:
            graph = KernelGraph()
            for launch in self.launches:
                launch.add_to(graph, size)
            self._graphs[size] = graph  # only now: an interrupt must not leave one without all kernels
        return self._graphs[size]

    def free(self) -> None:
        """Destroy the graphs."""
        for graph in self._graphs.values():
            graph.free()
        self._graphs = {}
