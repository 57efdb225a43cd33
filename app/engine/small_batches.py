"""Run small batches of pageable arrays in one piece, mostly by one call: a CUDA graph of kernels for each size.

The size of a graph, in images, is a power of two or three quarters of one. A graph may compute more images than the
batch has: the others are left over from earlier batches, and nobody reads their results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cupy
import numpy as np

from app.cuda.graphs import KernelGraph
from app.cuda.memory import DeviceMemoryError, map_to_device, pinned_array
from app.engine.buffers import Buffers, LoadedPlan, next_power_of_two
from app.engine.interface import Outputs
from app.planning.plan import IMAGES, LABELS, LOGITS

Replay = Callable[[np.ndarray], Outputs]

MOST = 1024  # images; of larger batches, chunks hide the copies
LEAST = 64  # capacity of the first buffers


def graph_batch_size(count: int) -> int:
    """Return how many images the graph for a batch of ``count`` images computes."""
    power = next_power_of_two(count, 1)
    return 3 * power // 4 if power >= 4 and count <= 3 * power // 4 else power


class SmallBatches:
    """Run batches of up to ``most`` images, in buffers that grow with the batches, and wait for the results.

    replays: maps a shape of images to the function that ``make_replay`` returned for that shape.
    """

    def __init__(self, loaded: LoadedPlan) -> None:
        self.most = MOST  # images; lowered where device memory is short
        self.replays: dict[tuple[int, ...], Replay] = {}
        self._loaded = loaded
        self._buffers: _SmallBuffers | None = None

    def make_replay(self, images: np.ndarray) -> Replay | None:
        """Return a function that classifies images of this shape and type, or None if the buffers do not fit.

        images: (N, C, H, W), of the plan's input dtype. The function takes such images and returns results in pageable
        memory.
        """
        if self._buffers is None or self._buffers.capacity < len(images):
            self.free()
            capacity = next_power_of_two(len(images), LEAST)
            try:
                self._buffers = _SmallBuffers(self._loaded, capacity)
            except DeviceMemoryError:
                self.most = len(images) - 1
                return None
        replay = self.replays[images.shape] = self._buffers.make_replay(images.shape)
        return replay

    @property
    def nbytes(self) -> int:
        """Return the bytes of device memory that the buffers occupy."""
        return 0 if self._buffers is None else self._buffers.nbytes

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """Return all device arrays that a run writes."""
        return [] if self._buffers is None else self._buffers.arrays

    def free(self) -> None:
        """Free buffers and graphs."""
        self.replays = {}
        if self._buffers is not None:
            self._buffers.free()
        self._buffers = None


class _SmallBuffers(Buffers):
    """Buffers and graphs for up to ``capacity`` images. Kernels write the results over the bus.

    If the first kernel can read images over the bus, they are not copied to the device. Raises DeviceMemoryError if the
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
        self._graphed = all(launch.launches_only_kernels for launch in self.launches)

    def make_replay(self, shape: tuple[int, ...]) -> Replay:
        """Return a function that classifies images of this shape. For speed, all that it needs is looked up here."""
        count, wait, stream = shape[0], self._stream.synchronize, self._stream.ptr
        given = self._images[:count]
        target, (labels, logits) = given.reshape(shape), self._results.slice_view(slice(0, count))
        assert logits is not None
        copied, graphed = self._copied, self._graphed
        enqueue = (
            self._graph_for_size(graph_batch_size(count)).launch if graphed else partial(self.enqueue_kernels, count)
        )

        def run(images: np.ndarray) -> Outputs:
            target[...] = images
            if copied:
                self.copy_in(given, stream)
            enqueue(stream)
            wait()
            return Outputs(labels.copy(), logits.copy())

        return run

    def _graph_for_size(self, size: int) -> KernelGraph:
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
