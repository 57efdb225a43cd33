"""Run a plan on GPU arrays, on the caller's stream, without copies. The host waits only for results in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from app.base.errors import UserError
from app.cuda.memory import DeviceMemoryError, mapped_address, pinned_array, placeholder_array
from app.engine.buffers import ALIGNED, Buffers, LoadedPlan, next_power_of_two
from app.engine.copying import copy_in_parts
from app.engine.interface import Outputs
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan

if TYPE_CHECKING:
    from app.kernels.by_count import AnyLaunch

GIVEN = (IMAGES, LABELS, LOGITS)  # arrays that differ in each call; the other buffers are kept
MOST_BYTES = 1 << 30  # most memory of the kept buffers; more images at a time hardly gain anything
STEP = 16  # capacities are multiples of it, so that every piece of a caller's array is aligned to 16 bytes
APART = 256  # bytes: results in one allocation begin at multiples of it, as libraries expect of arrays
LABEL_TYPE = np.dtype(np.uint8)
# Where the parts of a batch end that is copied to page-locked memory, as shares of it: kernels run one part while the
# next one is copied. More parts cost more launches than they hide.
PART_ENDS = (0.5,)


class CardRunner:
    """Run a plan on arrays in the current GPU's memory. Calls must not overlap on the host; their streams may differ.

    capacity: most images per pass; a larger batch takes several passes. It grows with the batches, up to ``most``. A
    batch no larger than an earlier one allocates only results. stream: the stream of ``run_from_host``.
    """

    def __init__(self, loaded: LoadedPlan) -> None:
        self._loaded = loaded
        plan = loaded.plan
        scores, self._classes = plan.buffers[LOGITS]
        self._scores = np.dtype(scores)
        self.most = max_buffered_images(plan)
        self.capacity = 0
        self._buffers: Buffers | None = None
        self._per_call: list[tuple[AnyLaunch, int, int]] = []  # launch, position of the argument, index in GIVEN
        self._strides = [size * np.dtype(dtype).itemsize for dtype, size in (plan.buffers[name] for name in GIVEN)]
        self._done = cupy.cuda.Event(disable_timing=True)  # recorded once the kept buffers are free
        # The stream that uses the kept buffers; None: free. Kept alive, so that no new stream gets its pointer.
        self._last_stream: cupy.cuda.Stream | None = None
        self.stream = cupy.cuda.Stream(non_blocking=True)
        # The results that the host waits for.
        self._kept_labels, self._kept_scores = ReusedRows((), LABEL_TYPE), ReusedRows((self._classes,), self._scores)
        self._staging: ReusedRows | None = None
        self._spare_logits: Any = None  # for the next call, if it has as many images as the last one

    def run(self, count: int, images: int, stream: cupy.cuda.Stream) -> tuple[cupy.ndarray, cupy.ndarray]:
        """Enqueue images (N, …) on ``stream``, which must be current; return labels (N,) and scores (N, classes).

        images: address of ``count`` images of the plan's input dtype, contiguous and aligned to 16 bytes; keep them
        alive until the stream has finished. Raises UserError if the plan's buffers do not fit in device memory.
        """
        # One allocation, and not by cupy.empty: their overhead of microseconds would count here.
        behind = -(-count // APART) * APART
        memory = cupy.cuda.alloc(behind + count * self._strides[2])
        address: int = memory.ptr
        labels = cupy.ndarray((count,), LABEL_TYPE, memory)
        scores = cupy.ndarray((count, self._classes), self._scores, memory + behind)
        self._enqueue_after_previous(count, (images, address, address + behind), stream)
        self._done.record(stream)
        return labels, scores

    def run_to_host(self, count: int, images: int, stream: cupy.cuda.Stream, *, leave_logits: bool = False) -> Outputs:
        """Run ``count`` images on ``stream`` and wait; return results in pageable host memory, written over the bus.

        images: their address, aligned to 16 bytes. leave_logits: leave the logits in GPU memory, if they fit there.
        """
        outputs, results = self.allocate_results(count, leave_logits=leave_logits)
        try:
            self._enqueue_after_previous(count, (images, *results), stream)
        finally:
            stream.synchronize()  # after an exception, too: what was enqueued uses the kept buffers
            self._last_stream = None
        return outputs.copy()

    def run_from_host(self, images: np.ndarray, *, leave_logits: bool) -> Outputs:
        """Run images in host memory, which the first kernel reads over the bus; its variant must have ``reads_host``.

        images: (N, …) of the plan's input dtype, C-contiguous, in host memory. Pageable images are first copied to
        page-locked memory in parts, so that kernels run on one part during the copy of the next. leave_logits: leave
        the logits in GPU memory, if they fit there.
        """
        outputs, results = self.allocate_results(len(images), leave_logits=leave_logits)
        spare = len(images) if leave_logits else 0
        address = mapped_address(images)
        if address is not None and not address % ALIGNED:
            self._run_parts(address, results, [(0, len(images))], spare)
        else:
            self._run_staged(images, results, spare)
        return outputs.copy()

    def allocate_results(self, count: int, *, leave_logits: bool) -> tuple[Outputs, tuple[int, int]]:
        """Return page-locked arrays for results, which later calls reuse, and the arrays' addresses for kernels.

        leave_logits: instead return the logits as a new array in GPU memory, if it fits.
        """
        labels = self._kept_labels.first_rows(count)
        if leave_logits:
            logits, self._spare_logits = self._spare_logits, None
            if logits is None or len(logits) != count:
                logits = self._allocate_logits(count)
            if logits is not None:
                return Outputs(labels, logits), (self._kept_labels.address, logits.data.ptr)
        scores = self._kept_scores.first_rows(count)
        return Outputs(labels, scores), (self._kept_labels.address, self._kept_scores.address)

    def _allocate_logits(self, count: int) -> Any:
        """Return a new array in GPU memory for the logits of ``count`` images, or None if it does not fit."""
        # On this stream, for which the host waits: the pool's memory may still be in use on the caller's.
        with suppress(cupy.cuda.memory.OutOfMemoryError), self.stream:
            return cupy.ndarray((count, self._classes), self._scores)
        return None

    def _run_staged(self, images: np.ndarray, results: tuple[int, int], spare: int) -> None:
        """Copy images to page-locked memory and run them, part by part. results, spare: as for ``_run_parts``."""
        count, staging = len(images), self._staging or ReusedRows(images.shape[1:], images.dtype)
        self._staging = None  # after an exception, helpers may still write to it
        rows = staging.first_rows(count)
        ends = [int(count * share) // STEP * STEP for share in PART_ENDS]
        self._run_parts(staging.address, results, copy_in_parts(rows, images, [*ends, count]), spare)
        self._staging = staging

    def _run_parts(self, images: int, results: tuple[int, int], parts: Iterable[tuple[int, int]], spare: int) -> None:
        """Run kernels on page-locked images, part by part; wait for the results.

        images, results: addresses of images, and of labels and scores. parts: yields (start, stop) of each part when
        it is ready. spare: number of images for whose logits to allocate an array for the next call; 0: no array.
        """
        bases = (images, *results)
        try:
            for start, stop in parts:
                pixels, labels, scores = (base + start * each for base, each in zip(bases, self._strides, strict=True))
                self._enqueue_after_previous(stop - start, (pixels, labels, scores), self.stream)
            if spare:
                self._spare_logits = self._allocate_logits(spare)
        finally:
            self.stream.synchronize()  # after an exception, too: the images may be freed then
            self._last_stream = None

    def _enqueue_after_previous(self, count: int, addresses: tuple[int, int, int], stream: cupy.cuda.Stream) -> None:
        """Enqueue ``count`` images after all work enqueued before. addresses: of images, labels, scores.

        The caller must then record the event ``_done`` on the stream, or wait for the stream.
        """
        if count > self.capacity < self.most:
            self._grow_buffers(count)
        pointer, last = stream.ptr, self._last_stream
        if last is None or last.ptr != pointer:
            if last is not None:
                stream.wait_event(self._done)
            self._last_stream = stream
        self.enqueue(pointer, count, addresses)

    def enqueue(self, stream: int, count: int, addresses: tuple[int, int, int]) -> None:
        """Enqueue the kernels for ``count`` images. stream: a pointer. addresses: of images, labels, scores."""
        assert self._buffers is not None or count == 0
        capacity, launches = self.capacity, self._buffers.launches if self._buffers else ()
        for first in range(0, count, capacity or 1):
            for launch, place, given in self._per_call:
                launch.set_argument_address(place, addresses[given] + first * self._strides[given])
            piece = capacity if count - first > capacity else count - first
            for launch in launches:
                launch(stream, piece)

    def _grow_buffers(self, count: int) -> None:
        """Allocate larger buffers; if they do not fit, reduce ``most`` to the images that fit."""
        self.free()
        plan = self._loaded.plan
        wanted = min(next_power_of_two(count, STEP), self.most)
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
            results = len(launch.launch_for(1).kernel.arguments()) - len(node.writes)
            names = {0: node.reads, **{results + index: name for index, name in enumerate(node.writes)}}
            self._per_call += [(launch, place, GIVEN.index(name)) for place, name in names.items() if name in GIVEN]

    def free(self) -> None:
        """Wait for the enqueued work, then free the buffers."""
        self._spare_logits = None
        if self._buffers is not None:
            self._done.synchronize()
            self.stream.synchronize()
            self._buffers, self._per_call, self.capacity = None, [], 0


class ReusedRows:
    """A page-locked array with rows for the largest batch so far. address: the array's address for kernels."""

    def __init__(self, row: tuple[int, ...], dtype: np.dtype) -> None:
        self._rows, self.address = np.empty((0, *row), dtype), 0

    def first_rows(self, count: int) -> np.ndarray:
        """Return the first ``count`` rows; allocate a larger array if there are fewer."""
        if len(self._rows) < count:
            self._rows = pinned_array((next_power_of_two(count, STEP), *self._rows.shape[1:]), self._rows.dtype)
            self.address = mapped_address(self._rows) or 0
        return self._rows[:count]


def max_buffered_images(plan: ExecutionPlan) -> int:
    """Return the largest multiple of ``STEP`` images whose buffers take at most ``MOST_BYTES`` of GPU memory."""
    kept = (pair for name, pair in plan.buffers.items() if name not in GIVEN)
    each = sum(size * np.dtype(dtype).itemsize for dtype, size in kept)
    return max(MOST_BYTES // max(each, 1 << 10) // STEP * STEP, STEP)
