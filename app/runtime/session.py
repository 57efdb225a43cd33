"""The GPU session: owns the device buffers, streams, events and loaded kernels, and streams batches through them.

A batch is cut into chunks; the streams take them in turn. Each stream has its own buffers. Its copy in, kernels and
copy out run one after another, beside those of the other streams. Device buffers are allocated before the first run, a
stream's staging buffer at its first chunk of pageable images. The host waits only for a staging buffer that it is about
to fill again, and for the end.

A batch that comes again from the same page-locked arrays is captured as a CUDA graph and replayed from then on. The
graph holds the chunks' copies and kernels. If the first kernel can read images over the bus, the graph holds the
kernels alone, with buffers of its own; if the kernels take less time than the copies, it holds one copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import prod

import cupy
import numpy as np

from app.cuda.graph_capture import BatchGraph
from app.cuda.memory import DeviceMemoryError, is_pinned, pinned_array, uploaded
from app.errors import UserError
from app.kernels.launch import Kernel
from app.planning.plan import IMAGES, LOGITS, ExecutionPlan
from app.runtime.stream_buffers import AtOnce, Direct, Mark, Outputs, StreamBuffers

MOST_CHUNKS = 64  # limit for a graph: with more chunks, it saves no time
LARGEST_CHUNK = 4096  # images; larger chunks gain nothing


def default_chunk(batch: int) -> int:
    """Return images per chunk: a fifth of the batch fills the card and hides its copies."""
    return min(max(-(-batch // 5), 1), LARGEST_CHUNK)


def chunk_size(asked: int | None, batch: int, *, streamed: bool = False) -> int:
    """Return images per chunk: ``asked`` or the default, and never more than the batch has.

    streamed: the batch is one of many passes; its first chunk need not come early, and fewer calls are better.
    """
    equal = -(-batch // -(-batch // LARGEST_CHUNK))
    return min(asked or (equal if streamed else default_chunk(batch)), batch)


def pieces(count: int, chunk: int) -> Iterator[slice]:
    """Cut a batch into chunks. The first and the last have half of ``chunk``, the others are of equal length.

    The ends are short because nothing runs beside the first chunk's copy, nor beside the last one's kernels.
    """
    if count <= chunk:
        yield slice(0, count)
        return
    half = -(-chunk // 2)
    yield slice(0, half)
    yield from equal_pieces(half, count - half, chunk)
    yield slice(count - half, count)


def equal_pieces(start: int, stop: int, chunk: int) -> Iterator[slice]:
    """Cut start to stop into as few chunks as possible; their lengths differ by one image at most."""
    count, many = stop - start, -(-(stop - start) // chunk)
    for i in range(many):
        yield slice(start + count * i // many, start + count * (i + 1) // many)


class Session:
    """A plan ready to run on the current GPU. A context manager; reusable for any number of batches.

    Several threads may each have their own session: a session never waits for the whole device or its null stream.

    chunk: images per chunk; halved until the buffers fit in device memory (``shrunk`` is then True).
    always_in_chunks: copy a repeated batch in chunks even if a kernel could read it over the bus.
    Raises UserError if not even one image fits.
    """

    def __init__(self, plan: ExecutionPlan, *, chunk: int, streams: int, always_in_chunks: bool = False) -> None:
        self.plan = plan
        self._always_in_chunks = always_in_chunks
        self.kernels = [Kernel(node.variant, node.problem, plan.arch, node.settings) for node in plan.nodes]
        self.weights = [
            [None if array is None else uploaded(array) for array in kernel.pack(node.parameters)]
            for kernel, node in zip(self.kernels, plan.nodes, strict=True)
        ]
        self.shrunk = False
        while True:
            with suppress(DeviceMemoryError):
                self.stream_buffers = [
                    StreamBuffers(plan, self.kernels, self.weights, chunk, early=streams == 1) for _ in range(streams)
                ]
                break
            # The exception is gone here: it kept the allocated buffers alive.
            if chunk == 1:
                raise UserError("not even one image fits in the device's free memory: free some")
            chunk, self.shrunk = chunk // 2, True
        self.chunk = chunk
        self._graph = BatchGraph()
        self.direct: AtOnce | Direct | None = None  # the buffers of the graph; None: it replays chunks
        self._last: tuple[np.ndarray | None, Outputs | None] = None, None  # of the last call that replayed the graph
        self._busy = False  # whether the streams may have unfinished work
        self._pass_ends = [[cupy.cuda.Event(disable_timing=True) for _ in self.stream_buffers] for _ in range(2)]

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory in weights, buffers of all streams and buffers of the graph."""
        weights = sum(array.nbytes for arrays in self.weights for array in arrays if array is not None)
        direct = 0 if self.direct is None else self.direct.nbytes
        return weights + sum(buffers.nbytes for buffers in self.stream_buffers) + direct

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """All device arrays that a run writes: those of all streams and of the graph."""
        own = [] if self.direct is None else self.direct.arrays
        return [*(array for buffers in self.stream_buffers for array in buffers.arrays), *own]

    def outputs(self, count: int, *, logits: bool = False) -> Outputs:
        """Allocate page-locked arrays for the results of ``count`` images."""
        dtype, classes = self.plan.buffers[LOGITS]
        return Outputs(pinned_array((count,), np.uint8), pinned_array((count, classes), dtype) if logits else None)

    def run(self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None) -> None:
        """Classify (N, C, H, W) images; when this returns, the outputs are readable.

        images: of the plan's input dtype, C-contiguous. Images in page-locked memory are copied directly, others
        through a staging buffer.
        """
        if mark is None and self._again(images, outputs):
            if self._busy:
                self.wait()
            self._graph.launch()
            return
        self.submit(images, outputs, mark)
        self.wait()
        if mark is None and len(images) <= MOST_CHUNKS * self.chunk and all(k.capturable for k in self.kernels):
            self._graph.offer(_arrays(images, outputs), lambda: self._replayable(images, outputs))
            self._busy = False  # captured work did not run
            if not self.replays(images, outputs):
                self.direct = None

    def _again(self, images: np.ndarray, outputs: Outputs) -> bool:
        """``replays``; the same objects as in the last call are recognised without a look at their arrays."""
        if images is not self._last[0] or outputs is not self._last[1]:
            self._last = (images, outputs) if self.replays(images, outputs) else (None, None)
        return self._last[0] is not None

    def _replayable(self, images: np.ndarray, outputs: Outputs) -> Callable[[cupy.cuda.Stream], None]:
        """Return a function that enqueues the batch, from and to the stream that it is given. It allocates nothing."""
        self.direct = None
        for whole in () if self._always_in_chunks else (Direct, AtOnce):
            if whole.serves(self.plan, _arrays(images, outputs)):
                with suppress(DeviceMemoryError):
                    self.direct = whole(self.plan, self.kernels, self.weights, images, outputs)
                    return self.direct.enqueue

        def in_chunks(origin: cupy.cuda.Stream) -> None:
            fork = cupy.cuda.Event(disable_timing=True)
            fork.record(origin)
            for buffers in self.stream_buffers:
                buffers.stream.wait_event(fork)
            self.submit(images, outputs)
            for buffers in self.stream_buffers:
                join = cupy.cuda.Event(disable_timing=True)
                join.record(buffers.stream)
                origin.wait_event(join)

        return in_chunks

    def replays(self, images: np.ndarray, outputs: Outputs) -> bool:
        """Return whether ``run`` replays a CUDA graph for these arrays: the last two runs or more were on them."""
        return self._graph.holds(_arrays(images, outputs))

    def submit(
        self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None, *, chunk: int | None = None
    ) -> None:
        """Enqueue a batch and return at once. The images must not change until ``wait`` returns.

        chunk: images per chunk, at most the session's, which is the default.
        """
        parts = pieces(len(images), chunk or self.chunk)
        self._submit(images, outputs, zip(parts, itertools.cycle(self.stream_buffers)), mark)

    def _submit(
        self,
        images: np.ndarray,
        outputs: Outputs,
        parts: Iterable[tuple[slice, StreamBuffers]],
        mark: Mark | None = None,
    ) -> None:
        if images.dtype.name != self.plan.input_dtype or not images.flags.c_contiguous:
            raise ValueError(f"images must be contiguous {self.plan.input_dtype}, got {images.dtype}")
        if prod(images.shape[1:]) != self.plan.buffers[IMAGES][1] or len(outputs.labels) < len(images):
            raise ValueError(f"images of shape {images.shape} fit neither the network nor the outputs")
        self._busy = True
        pinned = is_pinned(images)
        for part, buffers in parts:
            source = images[part] if pinned else buffers.stage(images[part])
            buffers.enqueue(source, outputs.of(part), mark, staged=not pinned)

    def wait(self) -> None:
        """Block until everything submitted has arrived."""
        for buffers in self.stream_buffers:
            buffers.stream.synchronize()
        self._busy = False

    def cycle(self, images: np.ndarray, batch: int, pair: tuple[Outputs, Outputs]) -> Iterator[tuple[int, np.ndarray]]:
        """Stream the images again and again until ``batch`` images have been classified, in constant memory.

        Every image crosses the bus in every pass. Yields (images in the pass, labels) for each pass. The passes write
        to the two outputs in turn: while the caller reads one, the next pass is already running.
        """
        passes = -(-batch // len(images))
        # The turns continue from pass to pass, so no stream waits for one with less work.
        turns = itertools.cycle(self.stream_buffers)
        for index in range(passes + 1):
            if index < passes:
                some = images[: batch - index * len(images)]
                self._submit(some, pair[index % 2], zip(equal_pieces(0, len(some), self.chunk), turns, strict=False))
                for buffers, event in zip(self.stream_buffers, self._pass_ends[index % 2], strict=True):
                    event.record(buffers.stream)
            if index > 0:
                for event in self._pass_ends[(index - 1) % 2]:
                    event.synchronize()
                count = min(batch - (index - 1) * len(images), len(images))
                yield count, pair[(index - 1) % 2].labels[:count]

    def close(self) -> None:
        """Free device memory, streams and kernels."""
        self._graph, self._last = BatchGraph(), (None, None)
        self.direct = None
        self.stream_buffers = []
        self.weights = []
        self.kernels = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.wait()  # after an error, waiting would only raise another error instead
        self.close()


def _arrays(images: np.ndarray, outputs: Outputs) -> list[np.ndarray]:
    return [images, outputs.labels] if outputs.logits is None else [images, outputs.labels, outputs.logits]
