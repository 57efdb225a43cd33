"""The lanes of a GPU: each has a stream with its device buffers, and a few page-locked slots that it reads into.

While one slot is on its way through the card, the lane reads the next block into another. It waits only for the slot
that it is about to fill again. The streams of all lanes keep the bus and the multiprocessors busy at the same time.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from itertools import cycle
from math import prod
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import cupy
import numpy as np
from cupy.cuda import runtime

from app.classify.flights import Block, Lane
from app.classify.pieces import Place
from app.cuda import device
from app.cuda.cards import chosen_number
from app.cuda.events import EventPair
from app.cuda.memory import pinned_array
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import IMAGES, plan
from app.precision import SHORT
from app.processor import usable_cores
from app.runtime.session import Session
from app.runtime.stream_buffers import StreamBuffers, copy

if TYPE_CHECKING:
    from app.classify.engine import EngineSettings

LANES = 16  # a core of an H100's virtual machine copied 3.4 GB/s from the page cache, 16 cores 36; the bus takes 55
SLOTS = 2  # per lane: one is read into, the other is copied and computed
BLOCK = 16_384  # images: much more time in the driver than in Python
COMPRESSED_BLOCK = 2048  # images; a core takes milliseconds to decompress them
BLOCK_BYTES = 16 << 20  # of images in a block, at most; a lane's slots take as much page-locked memory each
DEVICE_BYTES = 512 << 20  # of device memory for a lane, at most
TIMED = 5  # copies, and runs of the kernels


class GpuLanes:
    """The lanes of one GPU of this process. Raises UserError for what the kernels cannot compute or hold."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        card = device.describe_gpu()
        self._name = card["name"]
        self._card = cupy.cuda.Device()
        choices = Choices(settings.precision, tuning=tuning.load(card["name"]))
        execution = plan(settings.graph, card["architecture"], choices, input_dtype=settings.dtype)
        self._arithmetic = f"{SHORT[execution.arithmetic]} on {execution.arch}"
        self._images = (settings.graph.network.input_shape, np.dtype(settings.dtype))
        image_bytes = prod(self._images[0]) * self._images[1].itemsize
        device_bytes = sum(size * np.dtype(dtype).itemsize for dtype, size in execution.buffers.values())
        block = COMPRESSED_BLOCK if settings.compressed else BLOCK
        most = min(block, BLOCK_BYTES // image_bytes, DEVICE_BYTES // device_bytes)
        cores = usable_cores()
        self.count = cores if settings.compressed else min(LANES, max(cores, 2))
        self._session = Session(execution, chunk=max(most, 1), streams=self.count)
        self.size = self._session.chunk
        self._sample = np.empty(0)

    def open(self, index: int) -> Callable[[Lane], None]:
        """Allocate a lane's slots."""
        runtime.setDevice(self._card.id)  # without a context, a thread's launches by the driver would fail
        buffers = self._session.stream_buffers[index]
        slots = [Slot(self._session, self.size, self._images, self._settings.logits) for _ in range(SLOTS)]
        self._sample = slots[0].images

        def body(lane: Lane) -> None:
            for slot in cycle(slots):
                slot.finish()
                block = lane.take(wait=False)
                if block is None:
                    for other in slots:  # nothing may be kept waiting while there is no other block
                        other.finish()
                    block = lane.take()
                    if block is None:
                        return
                if block.read(slot.images[: block.count]):
                    slot.enqueue(block, buffers)

        return body

    def place(self) -> Place:
        """Describe the card, and measure for a few milliseconds what limits it."""
        with self._card:
            limit = _slower(self._session.stream_buffers[0], self._sample)
        return Place(
            host=platform.node(),
            device=self._settings.label or f"cuda:{chosen_number(self._card.id)}",
            name=self._name,
            arithmetic=self._arithmetic,
            lanes=self.count,
            limit=limit,
        )

    def close(self) -> None:
        """Free the card's memory."""
        with self._card:
            self._session.close()


class Slot:
    """Page-locked memory for a block of images and its results, and the block that is on its way through the card."""

    def __init__(self, session: Session, size: int, images: tuple[tuple[int, ...], np.dtype], logits: bool) -> None:
        shape, dtype = images
        self.images = pinned_array((size, *shape), dtype)
        self.images.fill(0)
        self._outputs = session.outputs(size, logits=logits)
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
        begin = perf_counter()
        self._done.synchronize()
        found = self._outputs.of(slice(0, self._block.count))
        self._block.deliver(found.labels, found.logits, wait=perf_counter() - begin)
        self._block = None


def _slower(buffers: StreamBuffers, images: np.ndarray) -> str:
    """Return whether the copy of a block (``bus``) or its kernels (``kernels``) take longer, in a few milliseconds."""
    stream = buffers.stream

    def copied() -> None:
        target = buffers.named[IMAGES].data.ptr
        copy(target, images.ctypes.data, images.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    def computed() -> None:
        for launch in buffers.launches:
            launch(stream.ptr, len(images))

    ms = {}
    for name, enqueue in (("bus", copied), ("kernels", computed)):
        pairs = [EventPair() for _ in range(TIMED)]
        for pair in pairs:
            pair.around(enqueue, stream)
        stream.synchronize()
        ms[name] = median(pair.ms for pair in pairs)
    return max(ms, key=ms.__getitem__)
