"""Divide pieces of shards among a worker's feeder threads, which take blocks of images and deliver labels.

No pixels pass between threads: a feeder reads the blocks that it classifies. Feeders read the blocks of a compressed
shard one after another; any idle feeder takes the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Event
from typing import Any

import numpy as np

from app.base.clock import Timer
from app.base.errors import UserError
from app.classify.pieces import Piece, Seconds


class Flight:
    """A piece that is being classified, its result arrays and its error, if any. ``done``: no feeder uses it."""

    def __init__(self, piece: Piece, reader: Any, classes: int | None) -> None:
        """reader: reads the shard of the piece. classes: number of logits; None if the caller wants no logits."""
        self.piece = piece
        self.reader = reader
        self.labels = np.empty(piece.count, np.uint8)
        self.logits = None if classes is None else np.empty((piece.count, classes), np.float32)
        self.seconds = Seconds()
        self.error: BaseException | None = None
        self.done = Event()
        self.taken = 0  # images that feeders have taken
        self.blocks = 0  # blocks that feeders hold
        self.busy = False  # a feeder reads the next block of a compressed shard

    @property
    def has_free_block(self) -> bool:
        """Return whether a feeder can take a block now."""
        return not self.busy and self.error is None and self.taken < self.piece.count


class Block:
    """A block of a flight: ``count`` images from index ``start`` on, which one feeder thread classifies."""

    def __init__(self, feeder: Feeder, flight: Flight, start: int, count: int) -> None:
        self._feeder, self._flight = feeder, flight
        self.start, self.count = start, count

    def read(self, images: np.ndarray) -> bool:
        """Read the pixels into ``images`` (count, C, H, W). If that fails, end the flight and return False."""
        flight, timer = self._flight, Timer()
        try:
            flight.reader.read(flight.piece.first + self.start, images)
        except UserError as error:
            self.give_back(error)
            return False
        with self._feeder.flights.changed:
            flight.seconds.add(**{"decompress" if flight.busy else "read": timer.seconds})
            if flight.busy:
                flight.busy = False
                self._feeder.flights.changed.notify()
        return True

    def deliver(
        self, labels: np.ndarray, logits: np.ndarray | None, *, wait: float = 0.0, compute: float = 0.0
    ) -> None:
        """Copy labels (count,) and, if wanted, logits (count, classes) to the flight.

        wait, compute: seconds that the feeder waited for the device, or computed.
        """
        flight, rows = self._flight, slice(self.start, self.start + self.count)
        flight.labels[rows] = labels
        if flight.logits is not None:
            flight.logits[rows] = logits
        self.give_back(None, wait, compute)

    def give_back(self, error: BaseException | None, wait: float = 0.0, compute: float = 0.0) -> None:
        """Return the block to its flight. error: why the block has no labels. wait, compute: as for ``deliver``."""
        flight, flights = self._flight, self._feeder.flights
        with flights.changed:
            self._feeder.held.remove(self)
            flight.error = flight.error or error
            flight.blocks -= 1
            flight.seconds.add(wait=wait, compute=compute)
            flights.remove_if_finished(flight)


class Feeder:
    """The source of one thread's blocks. held: the blocks that the thread has not given back."""

    def __init__(self, flights: FlightQueue) -> None:
        self.flights = flights
        self.held: list[Block] = []

    def take_block(self, *, wait: bool = True) -> Block | None:
        """Return the next block of the earliest flight that has one; None at the end. wait: wait for a block."""
        flights = self.flights
        with flights.changed:
            while flights.ended is None:
                flight = next((flight for flight in flights.active if flight.has_free_block), None)
                if flight is not None:
                    return self._take_from(flight)
                if not wait:
                    break
                flights.changed.wait()
            return None

    def _take_from(self, flight: Flight) -> Block:
        start, at, size = flight.taken, flight.piece.first + flight.taken, self.flights.size
        count = min(size - at % size, flight.piece.count - start)  # blocks end at multiples of their size in the shard
        flight.taken += count
        flight.blocks += 1
        flight.busy = flight.piece.shard.sequential
        block = Block(self, flight, start, count)
        self.held.append(block)
        return block


class FlightQueue:
    """All flights, the earliest first. size: images per block. ended: why it hands out no more blocks, or None."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = Condition()  # guards all state here; notifies of new blocks and of the end
        self.active: list[Flight] = []
        self.ended: BaseException | None = None

    def classify(self, flight: Flight) -> None:
        """Hand the blocks of a flight to the feeders and wait until it is done. Raise its error, or a feeder's."""
        with self.changed:
            self.active.append(flight)
            flight.error = self.ended
            self.remove_if_finished(flight)
            self.changed.notify_all()
        flight.done.wait()
        if flight.error is not None:
            raise flight.error

    def remove_if_finished(self, flight: Flight) -> None:
        """Remove a flight if no feeder uses it any more. The caller must hold ``changed``."""
        if not flight.blocks and (flight.error is not None or flight.taken == flight.piece.count):
            self.active.remove(flight)
            flight.done.set()

    def end(self, reason: BaseException) -> None:
        """Hand out no more blocks. Flights end with ``reason`` once the feeders have given back their blocks."""
        with self.changed:
            self.ended = self.ended or reason
            for flight in [*self.active]:
                flight.error = flight.error or self.ended
                self.remove_if_finished(flight)
            self.changed.notify_all()

    def abandon_hanging_feeders(self) -> None:
        """Stop waiting for feeders that hang; call it after ``end``."""
        with self.changed:
            for flight in self.active:
                flight.done.set()

    @contextmanager
    def open_feeder(self) -> Iterator[Feeder]:
        """Yield the calling thread's feeder. An exception in the block ends all flights and is not raised again."""
        feeder = Feeder(self)
        try:
            yield feeder
        except BaseException as error:
            self.end(error)
        finally:
            for block in [*feeder.held]:
                block.give_back(self.ended)
