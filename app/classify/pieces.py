"""Define the unit of work, a piece (a range of images of one file), and its result. All classes can be pickled."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.classify.shards import Shard, ShardReader

# Most images in a piece, hence in a retry and in results held in memory; a compressed shard is one piece of any size.
GPU_PIECE = 1 << 20
CPU_PIECE = 1 << 13


class Piece(Frozen):
    """A unit of work: ``count`` images of a shard, from image ``first`` on. number: index of the shard in the run."""

    number: int
    shard: Shard
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.shard.path}, images {self.first:,} to {self.first + self.count - 1:,}"

    @property
    def nbytes(self) -> int:
        """Return the size of the images in bytes."""
        return self.count * self.shard.bytes_per_image


class DeviceInfo(Frozen):
    """Description of a device that classifies. host: name of its machine. device: ``cuda:0``, or ``cpu:0-3`` (cores).

    name: of the GPU or processor. arithmetic: such as ``fp32x on sm_90a`` or ``fp32 by NumPy``; devices with equal
    arithmetic give equal results to the bit. lanes: number of threads that feed it images. limit: what is slower,
    copies (``bus``) or ``kernels``; ``compute`` for a processor.
    """

    host: str
    device: str
    name: str
    arithmetic: str
    lanes: int
    limit: str


@dataclass
class ActivitySeconds:
    """Seconds that the threads which feed a device spent on each activity, summed over the threads.

    read: from uncompressed files. decompress: reading compressed files. wait: for the device. compute: on the CPU.
    """

    read: float = 0.0
    decompress: float = 0.0
    wait: float = 0.0
    compute: float = 0.0

    def add(self, **more: float) -> None:
        """Add seconds to the named fields."""
        for name, seconds in more.items():
            setattr(self, name, getattr(self, name) + seconds)


class PieceResult(Frozen):
    """Results of a piece of ``count`` images. labels: (count,) uint8. logits: (count, classes) float32, or None.

    correct: number of right labels; None if the true labels are unknown, or can only be read for the whole shard.
    """

    labels: np.ndarray
    logits: np.ndarray | None
    correct: int | None
    device_info: DeviceInfo
    seconds: ActivitySeconds


class PieceFault(Frozen):
    """The answer of a worker to a piece of an unreadable file. reason: fault and remedy in one line."""

    reason: str


Answers = Generator[tuple[Piece, PieceResult | PieceFault], None, None]


class Runner(Protocol):
    """Interface of objects that classify pieces on one or more devices."""

    def run(self, pieces: Iterable[Piece]) -> Answers:
        """Classify pieces (ranges of images); yield each with its result as it completes. Pieces are taken when needed.

        Closing the generator ends the pieces in flight. Raises UserError if the work cannot go on.
        """


def count_correct(labels: np.ndarray, shard: Shard, reader: ShardReader, first: int, classes: int) -> int:
    """Return how many of ``labels``, (n,) uint8, equal the true labels of a shard's images from ``first`` on.

    classes: number of classes of the network. Raises UserError if the true labels cannot be read, or are not labels
    that the network can give.
    """
    truth = reader.read_labels(first, len(labels))
    if shard.truth is not None and truth.max() >= classes:
        raise UserError(
            f"{shard.truth.name} has label {truth.max()}, but the network has classes 0 to {classes - 1}: "
            "use labels of the same classes, or --labels none"
        )
    return int(np.count_nonzero(labels == truth))


def images_per_piece(device_info: DeviceInfo) -> int:
    """Return how many images to send to the device as one unit of work."""
    return CPU_PIECE if device_info.limit == "compute" else GPU_PIECE


def select_image_ranges(counts: Sequence[int], start: int = 0, count: int | None = None) -> list[tuple[int, int]]:
    """Return (first image, number of images) of each shard: in all, ``count`` images from ``start`` on.

    counts: number of images of each shard. start: number of images to leave out, through all shards in order. count:
    None selects all others. Raises UserError if there are too few.
    """
    total = sum(counts)
    wanted = total - start if count is None else count
    if start + wanted > total or wanted < 1:
        asked = f"--start {start:,}" + ("" if count is None else f" --count {count:,}")
        raise UserError(f"{asked} is beyond the {total:,} images of the shards: choose fewer")
    found, before = [], 0
    for images in counts:
        first = min(max(start - before, 0), images)
        found.append((first, min(max(start + wanted - before, 0), images) - first))
        before += images
    return found


def split_into_pieces(number: int, shard: Shard, first: int, count: int, size: int) -> Iterator[Piece]:
    """Yield pieces of the shard at index ``number``: ``count`` images in all, from index ``first`` on.

    Pieces end at multiples of ``size`` images; a file without random access is one piece.
    """
    at, end = first, first + count
    while at < end:
        stop = end if shard.is_sequential else min((at // size + 1) * size, end)
        yield Piece(number, shard, at, stop - at)
        at = stop
