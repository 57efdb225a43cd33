"""Feed a GPU from several threads: each has a stream, and a few page-locked slots that it reads blocks into.

While one slot is on its way through the card, the thread reads the next block into another. It waits only for the slot
that it is about to fill again. The streams of all threads keep the bus and the multiprocessors busy at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import prod
from statistics import median

import cupy
import numpy as np

from app.base.clock import Timer
from app.base.processor import usable_cores
from app.cuda.events import event_timed
from app.cuda.memory import pinned_array
from app.engine.buffers import StreamBuffers
from app.engine.interface import Block, Feeding, Outputs, Source
from app.planning.plan import ExecutionPlan

FEEDERS = 16  # a core of an H100's virtual machine copied 3.4 GB/s from the page cache, 16 cores 36; the bus takes 55
SLOTS = 2  # of a thread: one is read into, the other is copied and computed
BLOCK = 16_384  # images: much more time in the driver than in Python
COMPRESSED_BLOCK = 2048  # images; a core takes milliseconds to decompress them
BLOCK_BYTES = 16 << 20  # of images in a block, at most; a thread's slots take as much page-locked memory each
DEVICE_BYTES = 512 << 20  # of device memory for a thread, at most
TIMED = 5  # copies, and runs of the kernels


def sizes(plan: ExecutionPlan, fed: Feeding) -> tuple[int, int]:
    """Return images in a block, and the number of threads."""
    image_bytes = prod(plan.input_shape) * np.dtype(plan.input_dtype).itemsize
    device_bytes = sum(size * np.dtype(dtype).itemsize for dtype, size in plan.buffers.values())
    block = COMPRESSED_BLOCK if fed.compressed else BLOCK
    most = min(block, BLOCK_BYTES // image_bytes, DEVICE_BYTES // device_bytes)
    cores = usable_cores()
    return max(most, 1), cores if fed.compressed else min(FEEDERS, max(cores, 2))


def body(slots: Sequence[Slot], buffers: StreamBuffers) -> Callable[[Source], None]:
    """Return the body of a thread: it classifies the blocks of a source until its end."""

    def classify(source: Source) -> None:
        for slot in cycle(slots):
            slot.finish()
            block = source.take(wait=False)
            if block is None:
                for other in slots:  # nothing may be kept waiting while there is no other block
                    other.finish()
                block = source.take()
                if block is None:
                    return
            if block.read(slot.images[: block.count]):
                slot.enqueue(block, buffers)

    return classify


class Slot:
    """Page-locked memory for a block of images and its results, and the block that is on its way through the card."""

    def __init__(self, plan: ExecutionPlan, size: int, outputs: Outputs) -> None:
        self.images = pinned_array((size, *plan.input_shape), plan.input_dtype)
        self.images.fill(0)
        self._outputs = outputs
        # Blocking: a thread that waits must not take a core from those that read.
        self._done = cupy.cuda.Event(block=True, disable_timing=True)
        self._block: Block | None = None

    def enqueue(self, block: Block, buffers: StreamBuffers) -> None:
        """Start the block's way through the card."""
        part = slice(0, block.count)
        buffers.enqueue(self.images[part], self._outputs.of(part))
        self._done.record(buffers.stream)
        self._block = block

    def finish(self) -> None:
        """Wait for the block, if there is one, and deliver its labels."""
        if self._block is None:
            return
        timer = Timer()
        self._done.synchronize()
        found = self._outputs.of(slice(0, self._block.count))
        self._block.deliver(found.labels, found.logits, wait=timer.seconds)
        self._block = None


def slower(buffers: StreamBuffers, images: np.ndarray) -> str:
    """Return whether the copy of a block (``bus``) or its kernels (``kernels``) take longer, in a few milliseconds."""
    stream = buffers.stream
    work: dict[str, Callable[[], None]] = {
        "bus": lambda: buffers.copy_in(images, stream.ptr),
        "kernels": lambda: buffers.compute(len(images), stream.ptr),
    }
    ms = {name: median(event_timed(enqueue, stream, TIMED)) for name, enqueue in work.items()}
    return max(ms, key=ms.__getitem__)
