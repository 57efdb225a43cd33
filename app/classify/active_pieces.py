"""Share the images that a worker classifies among its feeders: threads that take blocks, read and classify them.

A piece is a range of images of one file (a shard); a block is a few of them, which the device classifies at once. No
pixels pass between threads. Only one feeder at a time reads a compressed shard; any idle one takes its next block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Event
from typing import Any

import numpy as np

from app.base.clock import Timer
from app.base.errors import UserError
from app.classify.pieces import ActivitySeconds, Piece


class ActivePiece:
    """A piece (range of images) in classification, with its results or error. done: set when no feeder uses it."""

    def __init__(self, piece: Piece, reader: Any, classes: int | None) -> None:
        """Allocate the results. reader: reads the images. classes: logits of each image; None: store no logits."""
        self.piece = piece
        self.reader = reader
        self.labels = np.empty(piece.count, np.uint8)
        self.logits = None if classes is None else np.empty((piece.count, classes), np.float32)
        self.seconds = ActivitySeconds()
        self.error: BaseException | None = None
        self.done = Event()
        self.taken = 0  # images that feeders have taken
        self.blocks = 0  # blocks that feeders hold
        self.busy = False  # a feeder reads the next block of a compressed shard

    @property
    def has_free_block(self) -> bool:
        """Return whether a feeder can take a block now: images are left, and no reader of a compressed file is busy."""
        return not self.busy and self.error is None and self.taken < self.piece.count


class Block:
    """The images of a piece that one feeder thread classifies at once: ``count`` from index ``start`` in the piece."""

    def __init__(self, feeder: Feeder, active: ActivePiece, start: int, count: int) -> None:
        self._feeder, self._active = feeder, active
        self.start, self.count = start, count

    def read(self, images: np.ndarray) -> bool:
        """Read the pixels into ``images`` (count, C, H, W). On a fault of the file, end the piece; return False."""
        active, timer = self._active, Timer()
        try:
            active.reader.read(active.piece.first + self.start, images)
        except UserError as error:
            self.return_block(error)
            return False
        with self._feeder.queue.changed:
            active.seconds.add(**{"decompress" if active.busy else "read": timer.seconds})
            if active.busy:
                active.busy = False
                self._feeder.queue.changed.notify()
        return True

    def deliver(
        self, labels: np.ndarray, logits: np.ndarray | None, *, wait: float = 0.0, compute: float = 0.0
    ) -> None:
        """Copy labels (count,) and, if wanted, logits (count, classes) to the piece's results, and give the block back.

        wait: seconds for which the feeder waited for the device. compute: seconds for which the feeder itself computed.
        """
        active, rows = self._active, slice(self.start, self.start + self.count)
        active.labels[rows] = labels
        if active.logits is not None:
            active.logits[rows] = logits
        self.return_block(None, wait, compute)

    def return_block(self, error: BaseException | None, wait: float = 0.0, compute: float = 0.0) -> None:
        """Give the block back. error: why it has no labels; None if it has. wait, compute: as in ``deliver``."""
        active, queue = self._active, self._feeder.queue
        with queue.changed:
            self._feeder.held.remove(self)
            active.error = active.error or error
            active.blocks -= 1
            active.seconds.add(wait=wait, compute=compute)
            queue.remove_if_finished(active)


class Feeder:
    """A feeder thread's access to the queue. held: the blocks of images that the thread has not returned."""

    def __init__(self, queue: ActivePieceQueue) -> None:
        self.queue = queue
        self.held: list[Block] = []

    def take_block(self, *, wait: bool = True) -> Block | None:
        """Return a block of the earliest piece that has one; None at the end, or if none is free and not ``wait``."""
        queue = self.queue
        with queue.changed:
            while queue.ended is None:
                active = next((active for active in queue.active if active.has_free_block), None)
                if active is not None:
                    return self._take_block_from(active)
                if not wait:
                    break
                queue.changed.wait()
            return None

    def _take_block_from(self, active: ActivePiece) -> Block:
        start, at, size = active.taken, active.piece.first + active.taken, self.queue.size
        count = min(size - at % size, active.piece.count - start)  # blocks end at multiples of their size in the shard
        active.taken += count
        active.blocks += 1
        active.busy = active.piece.shard.is_sequential
        block = Block(self, active, start, count)
        self.held.append(block)
        return block


class ActivePieceQueue:
    """The pieces in classification, earliest first. size: images per block. ended: exception that ended it, if any."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Guards all state of the queue and its pieces; notifies of new blocks and of the end.
        self.changed = Condition()
        self.active: list[ActivePiece] = []
        self.ended: BaseException | None = None

    def classify(self, active: ActivePiece) -> None:
        """Let the feeders classify a piece, and wait until they have. Raise the error of the piece or of a feeder."""
        with self.changed:
            self.active.append(active)
            active.error = self.ended
            self.remove_if_finished(active)
            self.changed.notify_all()
        active.done.wait()
        if active.error is not None:
            raise active.error

    def remove_if_finished(self, active: ActivePiece) -> None:
        """Remove a classified or failed piece if no feeder uses it. The caller must hold the lock ``changed``."""
        if not active.blocks and (active.error is not None or active.taken == active.piece.count):
            self.active.remove(active)
            active.done.set()

    def end(self, reason: BaseException) -> None:
        """Hand out no more blocks. Pieces end with ``reason`` once the feeders have returned their blocks."""
        with self.changed:
            self.ended = self.ended or reason
            for active in [*self.active]:
                active.error = active.error or self.ended
                self.remove_if_finished(active)
            self.changed.notify_all()

    def abandon_hanging_feeders(self) -> None:
        """Let ``classify`` return although feeder threads hang; call this after ``end``."""
        with self.changed:
            for active in self.active:
                active.done.set()

    @contextmanager
    def open_feeder(self) -> Iterator[Feeder]:
        """Yield a feeder for the calling thread. An exception in the block ends all pieces and is not raised again."""
        feeder = Feeder(self)
        try:
            yield feeder
        except BaseException as error:
            self.end(error)
        finally:
            for block in [*feeder.held]:
                block.return_block(self.ended)
