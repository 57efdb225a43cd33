"""The GPU session: owns the device buffers, streams, events and loaded kernels, and streams batches through them.

Images are cut into chunks that go round the lanes. A lane is a stream with its own buffers: copy in, kernels,
copy out follow one another there, while the copies of one lane run beside the kernels of another. Nothing is
allocated per run, and the host waits only for a staging buffer that it is about to fill again and for the end. A batch
that comes from the same page-locked arrays again is captured as a CUDA graph, and replayed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from types import TracebackType
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.errors import UserError
from app.kernels.launch import Kernel, Launch
from app.memory import DeviceMemoryError, device_array, is_pinned, pinned_array, uploaded
from app.plan import IMAGES, LABELS, LOGITS, ExecutionPlan
from app.replay import BatchGraph

MOST_CHUNKS = 64  # in a graph: beyond, a call more or less does not count


def default_chunk(batch: int) -> int:
    """Images a chunk: a fifth of the batch fills the card and hides its copies; beyond 4,096 nothing is gained."""
    return min(max(-(-batch // 5), 1), 4096)


def chunk_size(asked: int | None, batch: int) -> int:
    """Images a chunk: as asked for or the default, and never more than there are."""
    return min(asked or default_chunk(batch), batch)


def pieces(count: int, chunk: int) -> Iterator[slice]:
    """A batch cut into chunks, the first and the last half as long as may be, those between of equal length.

    Nothing runs beside the first one's copy, nor beside the last one's kernels.
    """
    half = -(-chunk // 2)
    between = max(count - 2 * half, 0)
    many = -(-between // chunk)
    lengths = [half, *(between * (i + 1) // many - between * i // many for i in range(many)), half]
    start = 0
    for length in [count] if count <= chunk else lengths:
        stop = min(start + length, count)
        yield slice(start, stop)
        start = stop


class Lane:
    """One stream with its own device buffers and the kernels bound to them, for chunks of up to ``chunk`` images."""

    def __init__(self, plan: ExecutionPlan, kernels: list[Kernel], weights: list[list[Any]], chunk: int) -> None:
        self.chunk = chunk
        self.buffers = {name: device_array(chunk * n, dtype) for name, (dtype, n) in plan.buffers.items()}
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.copied = cupy.cuda.Event(disable_timing=True)  # the staging buffer has been read
        self.staging: np.ndarray | None = None
        self.launches: list[Launch] = [
            kernel.bind([self.buffers[node.reads], *arrays, *(self.buffers[name] for name in node.writes)], chunk)
            for node, kernel, arrays in zip(plan.nodes, kernels, weights, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Device memory of the buffers and of the kernels' workspaces."""
        return sum(buffer.nbytes for buffer in self.buffers.values()) + sum(launch.nbytes for launch in self.launches)

    def stage(self, images: np.ndarray) -> np.ndarray:
        """The images copied into this lane's page-locked buffer, once that is free."""
        if self.staging is None:
            self.staging = pinned_array((self.chunk, *images.shape[1:]), images.dtype)
        self.copied.synchronize()
        staged = self.staging[: len(images)]
        np.copyto(staged, images)
        return staged


@dataclass(frozen=True)
class Outputs:
    """Page-locked host arrays that results are copied into: labels (N) uint8; logits (N, classes) or None."""

    labels: np.ndarray
    logits: np.ndarray | None = None


Mark = Callable[[Lane], None]  # called before a chunk's copy in, kernels and copy out are enqueued, and after them


class Session:
    """A graph ready to run on the current GPU. A context manager; reusable for any number of batches.

    chunk: images a chunk; halved until the buffers fit in device memory (``shrunk`` then says so).
    Raises UserError if not even one image fits.
    """

    def __init__(self, plan: ExecutionPlan, *, chunk: int, streams: int) -> None:
        self.plan = plan
        self.kernels = [Kernel(node.variant, node.problem, plan.arch, node.settings) for node in plan.nodes]
        self.weights = [
            [None if array is None else uploaded(array) for array in kernel.pack(node.parameters)]
            for kernel, node in zip(self.kernels, plan.nodes, strict=True)
        ]
        self.shrunk = False
        self.lanes: list[Lane] = []
        while not self.lanes:
            # The retry happens outside the except block: the exception holds what had been allocated.
            if not self._allocate(chunk, streams):
                if chunk == 1:
                    raise UserError("not even one image fits in the device's free memory: free some, or --device cpu")
                chunk, self.shrunk = chunk // 2, True
        self.chunk = chunk
        self._graph = BatchGraph()
        self._busy = False  # whether anything may be under way in the lanes
        self._pass_ends = [[cupy.cuda.Event(disable_timing=True) for _ in self.lanes] for _ in range(2)]
        cupy.cuda.Device().synchronize()  # the weights have arrived

    def _allocate(self, chunk: int, streams: int) -> bool:
        try:
            self.lanes = [Lane(self.plan, self.kernels, self.weights, chunk) for _ in range(streams)]
        except DeviceMemoryError:
            return False
        return True

    @property
    def device_bytes(self) -> int:
        """Device memory held: buffers of all lanes, and weights."""
        weights = sum(array.nbytes for arrays in self.weights for array in arrays if array is not None)
        return weights + sum(lane.nbytes for lane in self.lanes)

    def outputs(self, count: int, *, logits: bool = False) -> Outputs:
        """Page-locked arrays for the results of ``count`` images."""
        dtype, classes = self.plan.buffers[LOGITS]
        return Outputs(pinned_array((count,), np.uint8), pinned_array((count, classes), dtype) if logits else None)

    def run(self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None) -> None:
        """Classify (N, C, H, W) images; when this returns, the outputs are readable.

        images: of the plan's input dtype, C-contiguous; from page-locked memory they are copied directly,
        else through a staging buffer.
        """
        if mark is None and self.replays(images, outputs):
            if self._busy:
                self.wait()
            self._graph.launch()
            return
        self.submit(images, outputs, mark)
        self.wait()
        if mark is None and len(images) <= MOST_CHUNKS * self.chunk and all(k.capturable for k in self.kernels):
            streams = [lane.stream for lane in self.lanes]
            self._graph.offer(_arrays(images, outputs), streams, lambda: self.submit(images, outputs))
            self._busy = False  # what was captured did not run

    def replays(self, images: np.ndarray, outputs: Outputs) -> bool:
        """Whether ``run`` on these arrays replays a CUDA graph: if it had them twice before, and no others since."""
        return self._graph.holds(_arrays(images, outputs))

    def submit(self, images: np.ndarray, outputs: Outputs, mark: Mark | None = None) -> None:
        """Enqueue a batch and return at once. The images must stay as they are until ``wait``."""
        if images.dtype.name != self.plan.input_dtype or not images.flags.c_contiguous:
            raise ValueError(f"images must be contiguous {self.plan.input_dtype}, got {images.dtype}")
        if prod(images.shape[1:]) != self.plan.buffers[IMAGES][1] or len(outputs.labels) < len(images):
            raise ValueError(f"images of shape {images.shape} fit neither the network nor the outputs")
        self._busy = True
        pinned = is_pinned(images)
        for index, part in enumerate(pieces(len(images), self.chunk)):
            lane = self.lanes[index % len(self.lanes)]
            self._enqueue(lane, images[part], pinned, outputs, part, mark)

    def _enqueue(
        self, lane: Lane, images: np.ndarray, pinned: bool, outputs: Outputs, part: slice, mark: Mark | None
    ) -> None:
        stream = lane.stream.ptr
        source = images if pinned else lane.stage(images)
        if mark:
            mark(lane)
        _copy(lane.buffers[IMAGES].data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, stream)
        if not pinned:
            lane.copied.record(lane.stream)
        if mark:
            mark(lane)
        for launch in lane.launches:
            launch(stream, len(images))
        if mark:
            mark(lane)
        for name, target in ((LABELS, outputs.labels), (LOGITS, outputs.logits)):
            if target is not None:
                rows = target[part]
                _copy(rows.ctypes.data, lane.buffers[name].data.ptr, rows.nbytes, runtime.memcpyDeviceToHost, stream)
        if mark:
            mark(lane)

    def wait(self) -> None:
        """Block until everything submitted has arrived."""
        for lane in self.lanes:
            lane.stream.synchronize()
        self._busy = False

    def cycle(self, images: np.ndarray, batch: int, pair: tuple[Outputs, Outputs]) -> Iterator[tuple[int, np.ndarray]]:
        """Stream the images again and again until ``batch`` have been classified, in constant memory.

        Every image crosses the bus every time. Yields (images in the pass, labels) for each pass; passes
        write to the two outputs in turn. While one pass is read, the next is already under way.
        """
        passes = -(-batch // len(images))
        for index in range(passes + 1):
            if index < passes:
                self.submit(images[: batch - index * len(images)], pair[index % 2])
                for lane, event in zip(self.lanes, self._pass_ends[index % 2], strict=True):
                    event.record(lane.stream)
            if index > 0:
                for event in self._pass_ends[(index - 1) % 2]:
                    event.synchronize()
                count = min(batch - (index - 1) * len(images), len(images))
                yield count, pair[(index - 1) % 2].labels[:count]

    def close(self) -> None:
        """Free device memory, streams and kernels."""
        self._graph = BatchGraph()
        self.lanes = []
        self.weights = []
        self.kernels = []

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()  # after an error, waiting would only raise another in its place
        self.close()


def _arrays(images: np.ndarray, outputs: Outputs) -> list[np.ndarray]:
    return [images, outputs.labels] if outputs.logits is None else [images, outputs.labels, outputs.logits]


def _copy(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
    runtime.memcpyAsync(target, source, nbytes, direction, stream)
