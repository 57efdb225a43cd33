"""Classify blocks of images on a GPU; several threads read the blocks, each thread into two page-locked slots.

While the GPU copies and computes one slot, its thread reads the next block into the other slot. The thread waits only
for the slot that it is about to refill. The streams of all threads together keep the bus and the multiprocessors busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from math import prod
from statistics import median

import cupy
import numpy as np
from cupy.cuda import runtime

from app.base.clock import Timer
from app.base.precision import SHORT
from app.base.processor import core_count
from app.cuda import device
from app.cuda.cards import original_device_number
from app.cuda.events import time_by_events
from app.cuda.memory import pinned_array
from app.engine.buffers import StreamBuffers
from app.engine.gpu import GpuEngine
from app.engine.interface import Block, BlockSource, EngineDescription, FeedingOptions, Outputs
from app.planning.plan import ExecutionPlan

FEEDERS = 16  # a core of an H100's virtual machine copied 3.4 GB/s from the page cache, 16 cores 36; the bus takes 55
SLOTS = 2  # per thread: one is read into while the other is copied and computed
BLOCK = 16_384  # images: large enough that Python's overhead per block does not count
COMPRESSED_BLOCK = 2048  # images; a core takes milliseconds to decompress them
BLOCK_BYTES = 16 << 20  # most bytes of images in a block; each slot takes as much page-locked memory
DEVICE_BYTES = 512 << 20  # most device memory per thread
TIMED = 5  # timed copies, and timed runs of the kernels


def choose_block_and_threads(plan: ExecutionPlan, fed: FeedingOptions) -> tuple[int, int]:
    """Return the images per block, and the number of threads that read blocks. fed: options of such an engine."""
    image_bytes = prod(plan.input_shape) * np.dtype(plan.input_dtype).itemsize
    device_bytes = sum(size * np.dtype(dtype).itemsize for dtype, size in plan.buffers.values())
    block = COMPRESSED_BLOCK if fed.compressed else BLOCK
    most = min(block, BLOCK_BYTES // image_bytes, DEVICE_BYTES // device_bytes)
    cores = core_count()
    return max(most, 1), cores if fed.compressed else min(FEEDERS, max(cores, 2))


def make_feeding_loop(slots: Sequence[BlockSlot], buffers: StreamBuffers) -> Callable[[BlockSource], None]:
    """Return a thread's function: it reads a source's blocks into ``slots`` in turn, and the GPU classifies them."""

    def classify(source: BlockSource) -> None:
        for slot in cycle(slots):
            slot.finish()
            block = source.take_block(wait=False)
            if block is None:
                for other in slots:  # deliver everything before waiting for more blocks
                    other.finish()
                block = source.take_block()
                if block is None:
                    return
            if block.read(slot.images[: block.count]):
                slot.enqueue(block, buffers)

    return classify


class FedGpuEngine(GpuEngine):
    """A GPU engine that several threads feed: it chooses the images per block, and gives each thread a stream."""

    def __init__(self, plan: ExecutionPlan, fed: FeedingOptions) -> None:
        chunk, streams = choose_block_and_threads(plan, fed)
        super().__init__(plan, chunk=chunk, streams=streams)
        self._with_logits = fed.logits
        self._sample = np.empty(0)  # a block's page-locked images, for ``describe``

    def prepare_feeding(self, index: int) -> Callable[[BlockSource], None]:
        """Allocate slots for feeding thread ``index``; return its function, which classifies a source's blocks."""
        runtime.setDevice(self.device.id)  # cuLaunchKernelEx fails in a thread without a context
        outputs = partial(self.allocate_outputs, self.block, logits=self._with_logits)
        slots = [BlockSlot(self.plan, self.block, outputs()) for _ in range(SLOTS)]
        self._sample = slots[0].images
        return make_feeding_loop(slots, self.stream_buffers[index])

    def describe(self) -> EngineDescription:
        """Return GPU, arithmetic, and whether copies or kernels are slower, which takes milliseconds to measure."""
        with self.device:
            return EngineDescription(
                device=f"cuda:{original_device_number(self.device.id)}",
                name=device.describe_gpu()["name"],
                arithmetic=f"{SHORT[self.arithmetic]} on {self.plan.arch}",
                limit=measure_bottleneck(self.stream_buffers[0], self._sample),
            )


class BlockSlot:
    """Page-locked memory for a block and its results, and the block that the GPU is computing, if any."""

    def __init__(self, plan: ExecutionPlan, size: int, outputs: Outputs) -> None:
        self.images = pinned_array((size, *plan.input_shape), plan.input_dtype)
        self.images.fill(0)
        self._outputs = outputs
        # A blocking event: a waiting thread must not spin on a core that others read with.
        self._done = cupy.cuda.Event(block=True, disable_timing=True)
        self._block: Block | None = None

    def enqueue(self, block: Block, buffers: StreamBuffers) -> None:
        """Enqueue the copies and kernels of the block in this slot, on the stream and device memory of ``buffers``."""
        part = slice(0, block.count)
        buffers.enqueue(self.images[part], self._outputs.slice_view(part))
        self._done.record(buffers.stream)
        self._block = block

    def finish(self) -> None:
        """Wait for the block of the slot, if there is one, and pass the results to its ``deliver``."""
        if self._block is None:
            return
        timer = Timer()
        self._done.synchronize()
        found = self._outputs.slice_view(slice(0, self._block.count))
        self._block.deliver(found.labels, found.logits, wait=timer.seconds)
        self._block = None


def measure_bottleneck(buffers: StreamBuffers, images: np.ndarray) -> str:
    """Return what takes longer for a block of images: the copy (``bus``) or the ``kernels``. Takes milliseconds."""
    stream = buffers.stream
    work: dict[str, Callable[[], None]] = {
        "bus": lambda: buffers.copy_in(images, stream.ptr),
        "kernels": lambda: buffers.enqueue_kernels(len(images), stream.ptr),
    }
    ms = {name: median(time_by_events(enqueue, stream, TIMED)) for name, enqueue in work.items()}
    return max(ms, key=ms.__getitem__)
