"""Run a plan on GPU arrays, on the caller's stream, without copies and without making the host wait."""

from __future__ import annotations

from contextlib import suppress

import cupy
import numpy as np

from app.base.errors import UserError
from app.cuda.memory import DeviceMemoryError, placeholder_array
from app.engine.buffers import Buffers, LoadedPlan
from app.kernels.launch import Launch
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

GIVEN = (IMAGES, LABELS, LOGITS)  # arrays of each call; the other buffers are kept from call to call
MOST_BYTES = 1 << 30  # most memory of the kept buffers; more images at a time hardly gain anything
STEP = 16  # capacities are multiples of it, so that every piece of a caller's array is aligned to 16 bytes


class OnCard:
    """Run a plan on arrays in the current GPU's memory. Calls must not overlap on the host; streams may differ.

    capacity: most images per pass; larger batches run in several. It grows with the batches, up to ``most``. Batches no
    larger than an earlier one allocate nothing but results.
    """

    def __init__(self, loaded: LoadedPlan) -> None:
        self._loaded = loaded
        plan = loaded.plan
        self._scores, self._classes = plan.buffers[LOGITS]
        self.most = most_images(plan)
        self.capacity = 0
        self._buffers: Buffers | None = None
        self._moved: list[tuple[Launch, int, int]] = []  # launch, position of the argument, index in GIVEN
        self._strides = [size * np.dtype(dtype).itemsize for dtype, size in (plan.buffers[name] for name in GIVEN)]
        self._done = cupy.cuda.Event(disable_timing=True)  # recorded once the kept buffers are free
        self._stream = 0

    def run(self, images: cupy.ndarray, stream: cupy.cuda.Stream) -> tuple[cupy.ndarray, cupy.ndarray]:
        """Enqueue (N, …) images on ``stream``, the current one; return labels (N,) and scores (N, classes).

        images: of the plan's input dtype, C-contiguous, aligned to 16 bytes; keep them alive until the stream has
        passed. Raises UserError if the kept buffers do not fit in device memory.
        """
        count = len(images)
        # Not by cupy.empty, whose overhead of microseconds would count here.
        labels, scores = cupy.ndarray((count,), np.uint8), cupy.ndarray((count, self._classes), self._scores)
        if count > self.capacity < self.most:
            self._grow(count)
        if stream.ptr != self._stream:
            stream.wait_event(self._done)
            self._stream = stream.ptr
        self.enqueue(stream.ptr, count, (images.data.ptr, labels.data.ptr, scores.data.ptr))
        self._done.record(stream)
        return labels, scores

    def enqueue(self, stream: int, count: int, addresses: tuple[int, int, int]) -> None:
        """Enqueue the launches for ``count`` images. stream: a pointer. addresses: of images, labels and scores."""
        assert self._buffers is not None or count == 0
        for first in range(0, count, self.capacity or 1):
            for launch, place, given in self._moved:
                launch.move(place, addresses[given] + first * self._strides[given])
            for launch in self._buffers.launches if self._buffers else ():
                launch(stream, min(self.capacity, count - first))

    def _grow(self, count: int) -> None:
        """Allocate larger kept buffers; reduce ``most`` to what fits."""
        self.free()
        plan = self._loaded.plan
        wanted = min(1 << (max(count, STEP) - 1).bit_length(), self.most)
        while self._buffers is None:
            given = {name: placeholder_array(wanted * plan.buffers[name][1], plan.buffers[name][0]) for name in GIVEN}
            with suppress(DeviceMemoryError):
                self._buffers = Buffers(self._loaded, wanted, given)
                break
            if wanted == STEP:
                raise UserError(f"not even {STEP} images fit in the device's free memory: free some")
            wanted = self.most = wanted // 2 // STEP * STEP
        self.capacity = wanted
        for node, launch in zip(plan.nodes, self._buffers.launches, strict=True):
            results = len(launch.kernel.arguments()) - len(node.writes)
            names = {0: node.reads, **{results + index: name for index, name in enumerate(node.writes)}}
            self._moved += [(launch, place, GIVEN.index(name)) for place, name in names.items() if name in GIVEN]

    def free(self) -> None:
        """Wait for the enqueued work, then free the kept buffers."""
        if self._buffers is not None:
            self._done.synchronize()
            self._buffers, self._moved, self.capacity = None, [], 0


def most_images(plan: ExecutionPlan) -> int:
    """Return the most images whose kept buffers take at most ``MOST_BYTES``: a multiple of ``STEP``."""
    kept = (pair for name, pair in plan.buffers.items() if name not in GIVEN)
    each = sum(size * np.dtype(dtype).itemsize for dtype, size in kept)
    return max(MOST_BYTES // max(each, 1 << 10) // STEP * STEP, STEP)
