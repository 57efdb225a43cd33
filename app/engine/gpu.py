"""Run a network on a GPU. The engine owns device buffers, streams, events, graphs and loaded kernels.

A batch is cut into chunks, which go to the streams one after another. Each stream has its own buffers; its copy in,
kernels and copy out overlap those of other streams. An engine with a chunk size allocates device buffers when it opens;
any other engine allocates them at the first batch, and again at a larger one. A stream allocates its staging buffer at
its first chunk of pageable images. The host waits only for a staging buffer that it is about to refill, and at the end.

If a batch comes again in the same page-locked arrays, the engine captures it as a CUDA graph, which it then replays.
The graph contains the copies and kernels of all chunks. If the first kernel can read images over the bus, the graph
contains only kernels, with separate buffers. If the kernels take less time than the copies, it contains a single copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

import cupy
import numpy as np

from app.base.errors import UserError
from app.cuda.graphs import BatchGraph
from app.cuda.memory import DeviceMemoryError, is_pinned, pinned_array
from app.engine.buffers import (
    Buffers,
    LoadedPlan,
    Mark,
    StreamBuffers,
    WholeBatchBuffers,
    chunk_slices,
    equal_chunk_slices,
    fork_streams,
    next_power_of_two,
)
from app.engine.interface import Engine, Outputs, Progress
from app.engine.request import STREAMS, default_chunk_size
from app.planning.plan import LOGITS, ExecutionPlan

if TYPE_CHECKING:
    from app.engine.card_runner import CardRunner
    from app.engine.copying import Copy
    from app.engine.small_batches import SmallBatches

LEAST_CHUNK = 64  # images; buffers for fewer would be replaced at the next larger batch
MOST_CHUNKS = 64  # limit for a graph: with more chunks, it saves no time
MOST_READ = 1 << 15  # images that the first kernel reads over the bus: their copy in page-locked memory is kept


class GpuEngine(Engine):
    """Run a plan on the current GPU. Any thread on which that GPU is current may call it, one call at a time.

    Several threads may each use an engine of their own: no engine waits for the whole device or its null stream. chunk:
    images per chunk, halved until buffers fit in device memory (``shrunk`` is then True); None lets it grow with the
    batches. always_in_chunks: copy a repeated batch in chunks even if a kernel could read it over the bus. Raises
    UserError if not even one image fits.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        *,
        chunk: int | None = None,
        streams: int = STREAMS,
        always_in_chunks: bool = False,
    ) -> None:
        self.plan, self.arithmetic = plan, plan.arithmetic
        self._scores, self._classes = plan.buffers[LOGITS]
        self._input_dtype = np.dtype(plan.input_dtype)
        self._always_in_chunks = always_in_chunks
        self.device = cupy.cuda.Device()
        self.loaded = LoadedPlan(plan)
        self.feeders, self._grows = streams, chunk is None
        self.stream_buffers: list[StreamBuffers] = []
        self.chunk = self.block = 0
        self.shrunk = False
        self._forget_graph()
        self._busy = False  # whether the streams may have unfinished work
        self._ends = [[cupy.cuda.Event(disable_timing=True) for _ in range(streams)] for _ in range(2)]
        if chunk is not None:
            self._allocate(chunk)

    def _forget_graph(self) -> None:
        self._graph = BatchGraph()
        self.direct: WholeBatchBuffers | None = None  # the graph's buffers; None: it replays chunks
        self._last: tuple[np.ndarray | None, Outputs | None] = None, None  # arguments of the last call that replayed it

    def _allocate(self, chunk: int) -> None:
        """Allocate the buffers of the streams for ``chunk`` images, or as many as fit. The streams must be idle."""
        self._forget_graph()
        self.stream_buffers = []
        while True:
            with suppress(DeviceMemoryError):
                one = partial(StreamBuffers, self.loaded, chunk, early=self.feeders == 1)
                self.stream_buffers = [one() for _ in range(self.feeders)]
                break
            # Outside of ``except``: the exception kept the allocated buffers alive.
            if chunk == 1:
                raise UserError("not even one image fits in the device's free memory: free some")
            chunk, self.shrunk = chunk // 2, True
        self.chunk = self.block = chunk

    def _grow_buffers(self, count: int) -> int:
        """Enlarge the buffers for ``count`` images, unless the chunk size is fixed; return the images per chunk."""
        wanted = default_chunk_size(count)
        if self._grows and self.chunk < wanted and not self.shrunk:
            self._allocate(next_power_of_two(wanted, LEAST_CHUNK))
        return min(wanted, self.chunk) if self._grows else self.chunk

    @cached_property
    def card_runner(self) -> CardRunner:
        """Return the runner for images in GPU memory, or in host memory that kernels read; create it at first use."""
        from app.engine.card_runner import CardRunner

        return CardRunner(self.loaded)

    @cached_property
    def small_batches(self) -> SmallBatches:
        """Return the runner for small batches in pageable memory; create it at the first use."""
        from app.engine.small_batches import SmallBatches

        return SmallBatches(self.loaded)

    @property
    def _buffers(self) -> list[Buffers | SmallBatches]:
        found = (*self.stream_buffers, self.direct, vars(self).get("small_batches"))
        return [buffers for buffers in found if buffers is not None]

    @property
    def device_bytes(self) -> int:
        """Return the bytes of device memory in weights and all buffers."""
        return self.loaded.nbytes + sum(buffers.nbytes for buffers in self._buffers)

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """Return all device arrays that a run writes."""
        return [array for buffers in self._buffers for array in buffers.arrays]

    def allocate_outputs(self, count: int, *, logits: bool = False) -> Outputs:
        """Return page-locked arrays for the labels of ``count`` images, and with ``logits`` also for their logits."""
        scores = pinned_array((count, self._classes), self._scores) if logits else None
        return Outputs(pinned_array((count,), np.uint8), scores)

    def run(self, images: np.ndarray, outputs: Outputs | None = None, progress: Progress | None = None) -> Outputs:
        """Classify images and wait; return ``outputs``, page-locked (``allocate_outputs``), or new ones with logits.

        images: (N, C, H, W) of the plan's dtype, C-contiguous; from pageable memory, they go through a staging buffer.
        """
        if outputs is None:
            outputs = self.run_without_graph(images, leave_logits=False)
        elif self._replays_last_call(images, outputs):
            if self._busy:
                self.wait()
            self._graph.launch()
        else:
            self.submit(images, outputs, chunk=self._grow_buffers(len(images)))
            self.wait()
            if len(images) <= MOST_CHUNKS * self.chunk and self.loaded.is_capturable:
                self._graph.capture_if_repeated(
                    [images, *outputs.arrays], partial(self._make_capturable_enqueue, images, outputs)
                )
                self._busy = False  # the capture enqueued nothing
                if not self.replays_graph_for(images, outputs):
                    self.direct = None
        if progress is not None:
            progress(len(images))
        return outputs

    def run_without_graph(self, images: np.ndarray, *, leave_logits: bool) -> Outputs:
        """Classify with page-locked results that later calls reuse; return copies of them. Captures no graph.

        leave_logits: return the logits of a large batch as a new array in GPU memory, complete on return.
        """
        small = self.small_batches
        replay = small.replays.get(images.shape)
        if replay is not None and images.dtype == self._input_dtype:
            return replay(images)
        count = len(images)
        if not count:
            return Outputs(np.empty(0, np.uint8), np.empty((0, self._classes), self._scores))
        self.plan.check_images(images)
        if count <= small.most and (replay := small.make_replay(images)) is not None:
            return replay(images)
        if count <= MOST_READ and self.plan.nodes[0].variant.reads_host:
            return self.card_runner.run_from_host(images, leave_logits=leave_logits)
        from app.engine.copying import copy_by_threads

        if self._busy:  # the call before was interrupted
            self.wait()
        chunk = self._grow_buffers(count)
        outputs, _ = self.card_runner.allocate_results(count, leave_logits=leave_logits)
        self.submit(images, outputs, chunk=chunk, copy=copy_by_threads)
        self.wait()
        return outputs.copy()

    def _replays_last_call(self, images: np.ndarray, outputs: Outputs) -> bool:
        """Return whether ``run`` replays a CUDA graph for these arrays; fast if they are the last call's objects."""
        if images is not self._last[0] or outputs is not self._last[1]:
            self._last = (images, outputs) if self.replays_graph_for(images, outputs) else (None, None)
        return self._last[0] is not None

    def _make_capturable_enqueue(self, images: np.ndarray, outputs: Outputs) -> Callable[[cupy.cuda.Stream], None]:
        """Return a function that enqueues the batch on a given stream and allocates nothing."""
        self.direct = None
        for direct in () if self._always_in_chunks else (True, False):
            if WholeBatchBuffers.can_replay_arrays(self.plan, [images, *outputs.arrays], direct=direct):
                with suppress(DeviceMemoryError):
                    self.direct = WholeBatchBuffers(self.loaded, images, outputs, direct=direct)
                    return self.direct.enqueue

        return partial(fork_streams, self.stream_buffers, partial(self.submit, images, outputs))

    def replays_graph_for(self, images: np.ndarray, outputs: Outputs) -> bool:
        """Return whether ``run`` replays a CUDA graph for these arrays: at least the last two runs used the same."""
        return self._graph.has_graph_for([images, *outputs.arrays])

    def submit(
        self,
        images: np.ndarray,
        outputs: Outputs,
        mark: Mark | None = None,
        *,
        chunk: int | None = None,
        parts: Iterable[tuple[slice, StreamBuffers]] | None = None,
        copy: Copy = np.copyto,
    ) -> None:
        """Enqueue a batch and return at once. The images must not change until ``wait`` returns.

        mark: called before, between and after a chunk's copy in, kernels and copy out. chunk: images per chunk, by
        default and at most the engine's. parts: chunks and their streams; by default, streams take turns. copy: copies
        pageable images to page-locked memory. Raises ValueError for a wrong type or shape, or too short ``outputs``.
        """
        self.plan.check_images(images)
        if len(outputs.labels) < len(images):
            raise ValueError(f"outputs for {len(outputs.labels)} images are too short for {len(images)}")
        self._busy = True
        pinned = is_pinned(images)
        if parts is None:
            parts = zip(
                chunk_slices(len(images), chunk or self.chunk), itertools.cycle(self.stream_buffers), strict=False
            )
        for part, buffers in parts:
            source = images[part] if pinned else buffers.copy_to_staging(images[part], copy)
            buffers.enqueue(source, outputs.slice_view(part), mark, staged=not pinned)

    def wait(self) -> None:
        """Wait until all submitted batches are complete."""
        for buffers in self.stream_buffers:
            buffers.stream.synchronize()
        self._busy = False

    def stream(
        self,
        blocks: Iterable[np.ndarray],
        pair: tuple[Outputs, Outputs] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """Classify arrays of images one by one; yield the labels of each while the next runs. pair: outputs in turn."""
        turns: Iterator[StreamBuffers] = iter(())
        before: tuple[int, int] | None = None  # the running array: index modulo 2, and length
        for index, images in enumerate(itertools.chain(blocks, (None,))):
            if images is not None:
                pair = pair or (self.allocate_outputs(len(images)), self.allocate_outputs(len(images)))
                if index == 0:
                    self._grow_buffers(len(images))
                    # One cycle over the streams for all arrays, so that each stream gets the same work.
                    turns = itertools.cycle(self.stream_buffers)
                parts = zip(equal_chunk_slices(0, len(images), self.chunk), turns, strict=False)
                self.submit(images, pair[index % 2], parts=parts)
                for buffers, event in zip(self.stream_buffers, self._ends[index % 2], strict=True):
                    event.record(buffers.stream)
            if before is not None and pair is not None:
                turn, count = before
                for event in self._ends[turn]:
                    event.synchronize()
                yield pair[turn].labels[:count]
                if progress is not None:
                    progress(count)
            before = None if images is None else (index % 2, len(images))

    def run_on_card(self, images: cupy.ndarray, stream: cupy.cuda.Stream) -> tuple[cupy.ndarray, cupy.ndarray]:
        """Enqueue images (N, …) in GPU memory without waiting; return labels (N,) and scores (N, classes) there."""
        return self.card_runner.run(len(images), images.data.ptr, stream)

    def close(self) -> None:
        """Free device memory, streams and kernels."""
        with self.device:
            self._forget_graph()
            self.stream_buffers = []
            for name in {"card_runner", "small_batches"} & vars(self).keys():
                getattr(self, name).free()
            self.loaded.free()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.wait()  # after an error, waiting would only raise another error instead
        self.close()
