"""Pieces of shards: what workers are given, and what they give back. All of it can be pickled."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from app.base.errors import UserError
from app.classify.shards import Reader, Shard

# Images of the largest unit of work, of a retry, and of results in memory; but a compressed shard is one piece.
GPU_PIECE = 1 << 20
CPU_PIECE = 1 << 13


@dataclass(frozen=True)
class Piece:
    """``count`` images of a shard, from image ``first`` on. number: the shard's place among those of the run."""

    number: int
    shard: Shard
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.shard.path}, images {self.first:,} to {self.first + self.count - 1:,}"

    @property
    def nbytes(self) -> int:
        """Bytes of the images' pixels."""
        return self.count * self.shard.image_bytes


@dataclass(frozen=True)
class Place:
    """A device that classifies. host: its machine. device: such as ``cuda:0`` or ``cpu:0-3`` (its cores).

    name: of the card or processor. arithmetic: such as ``fp32x on sm_90a`` or ``fp32 by NumPy``: where two places have
    the same, so have their results, to the bit. lanes: its feeders. limit: the slower of its copies and its
    kernels (``bus`` or ``kernels``), or ``compute`` for a processor.
    """

    host: str
    device: str
    name: str
    arithmetic: str
    lanes: int
    limit: str


@dataclass
class Seconds:
    """How long a worker's feeders spent on pieces.

    read, decompress: on bytes of plain and of compressed shards, until they were in memory. wait: for the device, which
    had to finish with a buffer. compute: on the processor.
    """

    read: float = 0.0
    decompress: float = 0.0
    wait: float = 0.0
    compute: float = 0.0

    def add(self, **more: float) -> None:
        """Add to the fields of these names."""
        for name, seconds in more.items():
            setattr(self, name, getattr(self, name) + seconds)


@dataclass(frozen=True)
class Result:
    """What a piece's images are. labels: (count,) uint8. logits: (count, classes) float32, or None if not wanted.

    correct: how many labels are right; None if the true ones are unknown, or can only be read for the whole shard.
    """

    labels: np.ndarray
    logits: np.ndarray | None
    correct: int | None
    place: Place
    seconds: Seconds


@dataclass(frozen=True)
class Fault:
    """Why a piece's shard cannot be read, in one line with the remedy. Others can be classified nevertheless."""

    reason: str


Answers = Generator[tuple[Piece, Result | Fault], None, None]


class Runner(Protocol):
    """Classifies pieces, on one device or many."""

    def run(self, pieces: Iterable[Piece]) -> Answers:
        """Take a piece whenever there is room for one; yield results as they come. Closing it ends what is in flight.

        Raises UserError if the work cannot go on.
        """


def count_right(labels: np.ndarray, shard: Shard, reader: Reader, first: int, classes: int) -> int:
    """Return how many labels, (n,) uint8, are those of a shard's images from ``first`` on. classes: of the network.

    Raises UserError for true labels that cannot be read, or that the network cannot give.
    """
    truth = reader.labels(first, len(labels))
    if shard.truth is not None and truth.max() >= classes:
        raise UserError(
            f"{shard.truth.name} has label {truth.max()}, but the network has classes 0 to {classes - 1}: "
            "use labels of the same classes, or --labels none"
        )
    return int(np.count_nonzero(labels == truth))


def piece_size(place: Place) -> int:
    """Return how many images a piece should have for a device."""
    return CPU_PIECE if place.limit == "compute" else GPU_PIECE


def windows(counts: Sequence[int], start: int = 0, count: int | None = None) -> list[tuple[int, int]]:
    """Return (first, count) of each shard's images among ``count`` images from ``start`` on, over all shards in order.

    counts: images of each shard. Raises UserError if there are not as many.
    """
    total = sum(counts)
    wanted = total - start if count is None else count
    if start + wanted > total or wanted < 1:
        asked = f"--start {start:,}" + ("" if count is None else f" --count {count:,}")
        raise UserError(f"{asked} is beyond the {total:,} images of the shards: choose fewer")
    found, before = [], 0
    for own in counts:
        first = min(max(start - before, 0), own)
        found.append((first, min(max(start + wanted - before, 0), own) - first))
        before += own
    return found


def cut(number: int, shard: Shard, first: int, count: int, size: int) -> Iterator[Piece]:
    """Cut a shard's images at multiples of ``size``; one piece if the shard can only be read from its start."""
    at, end = first, first + count
    while at < end:
        stop = end if shard.sequential else min((at // size + 1) * size, end)
        yield Piece(number, shard, at, stop - at)
        at = stop
