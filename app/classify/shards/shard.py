"""Define a shard, the images of one file and their labels, and read both in the form that the engine needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.classify.shards.sources import ArrayReader, StoredArray, open_array
from app.files import hdf5_process
from data_tools.dataset import channel_axis, check_fraction_range, convert_labels


class ShardError(UserError):
    """A file of images was written during the run, or its labels cannot be read. Other files are not affected."""


class Shard(Frozen):
    """The images of one file, and their labels if known. Frozen and picklable; ``open_shard`` makes it."""

    images: StoredArray
    truth: StoredArray | None

    @property
    def path(self) -> Path:
        """Return the absolute path of the images' file."""
        return self.images.path

    @property
    def count(self) -> int:
        """Return the number of images."""
        return self.images.shape[0]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of each image."""
        stored = self.images.shape
        if len(stored) == 3:
            return 1, stored[1], stored[2]
        first = channel_axis(stored, self.images.name) == 1
        return (stored[1], stored[2], stored[3]) if first else (stored[3], stored[1], stored[2])

    @property
    def dtype(self) -> np.dtype:
        """Return the type in which images are read: uint8, or float32 in [0, 1] if the file contains floats.

        Floats stay floats even if all are k/255, which is known only at the end of the file.
        """
        return np.dtype(np.uint8 if self.images.dtype == np.uint8 else np.float32)

    @property
    def bytes_per_image(self) -> int:
        """Return the bytes of an image in the type in which it is read."""
        channels, height, width = self.image_shape
        return channels * height * width * self.dtype.itemsize

    @property
    def is_sequential(self) -> bool:
        """Return whether the images can only be read in order, as in gzip files and HDF5 chunks."""
        return self.images.storage_form != "plain"

    @property
    def is_labelled(self) -> bool:
        """Return whether the true labels are known."""
        return self.truth is not None

    @property
    def labels_readable_by_piece(self) -> bool:
        """Return whether the labels of a piece (a range of images) can be read without those before it.

        Compressed labels would have to be read from the beginning for each piece; a compressed shard is one piece.
        """
        return self.truth is not None and (self.truth.storage_form == "plain" or self.is_sequential)

    def open_reader(self) -> ShardReader:
        """Open the files: ``with shard.open_reader() as reader: reader.read(first, out)``.

        Raises UserError if they cannot be opened or have changed in size.
        """
        return ShardReader(self)

    def check_unchanged(self) -> None:
        """Raise ShardError if a file of the shard was written or replaced after this machine opened it."""
        for stored in (self.images, self.truth):
            if stored is None:
                continue
            try:
                status = stored.path.stat()
            except OSError as error:
                raise ShardError(f"{stored.path} is gone ({error.strerror}): put it back, and run again") from error
            if (status.st_size, status.st_mtime_ns) != (stored.size, stored.mtime_ns):
                written = f"{stored.path} was written during the run"
                raise ShardError(f"{written}: run again when nothing writes it")


CONVERTED_BYTES = 4 << 20  # converted at a time


class ShardReader(AbstractContextManager["ShardReader"]):
    """Reads the images and labels of a shard. Every fault of a file is a UserError of one line with its path.

    Several threads may share a reader. They read uncompressed images in parallel, directly into the caller's memory.
    They read a sequential shard one after another; going back restarts at the first image. A helper process for chunked
    HDF5 ends with the thread that first read.
    """

    def __init__(self, shard: Shard) -> None:
        images, self._truth = shard.images, shard.truth
        self._stored, self._shape, self._dtype = images, shard.image_shape, shard.dtype
        self._opened = ExitStack()
        self._hdf5 = self._opened.enter_context(hdf5_process.Reader())
        self._images = self._opened.enter_context(open_array(images, self._hdf5))
        self._labels: ArrayReader | None = None
        self._opening = threading.Lock()
        last = len(images.shape) == 4 and channel_axis(images.shape, images.name) == 3
        self._order = (0, 3, 1, 2) if last else None
        self._as_stored = images.dtype == self._dtype and (not last or self._shape[0] == 1)

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill ``out`` with images from index ``first`` on.

        out: (n, C, H, W), n ≥ 0, of the shard's shape and dtype, C-contiguous. Raises UserError for a fault of the
        file, and ValueError for a wrong ``out`` or images out of range.
        """
        count = len(out)
        if out.shape[1:] != self._shape or out.dtype != self._dtype or not out.flags.c_contiguous:
            raise ValueError(f"images of this shard are {self._dtype} {self._shape}, not {out.dtype} {out.shape}")
        _check_range(first, count, self._stored)
        if not count:
            return
        if self._as_stored:
            self._images.fill(first * self._stored.row_bytes, out.reshape(-1).view(np.uint8))
            if out.dtype != np.uint8:
                check_fraction_range(out, self._stored.name)
            return
        for start, rows in _read_in_pieces(self._stored, self._images, first, count):
            if rows.dtype != np.uint8:
                check_fraction_range(rows, self._stored.name)
            if rows.ndim == 3:
                rows = rows[:, None]
            elif self._order is not None:
                rows = rows.transpose(self._order)
            out[start : start + len(rows)] = rows

    def read_labels(self, first: int, count: int) -> np.ndarray:
        """Return the true labels, (count,) uint8, of images from index ``first`` on; the shard must be labelled.

        Raises UserError for a fault of the file.
        """
        if self._truth is None:
            raise ValueError("the labels of this shard are unknown")
        _check_range(first, count, self._truth)
        with self._opening:
            if self._labels is None:
                self._labels = self._opened.enter_context(open_array(self._truth, self._hdf5))
        found = np.empty(count, np.uint8)
        for start, rows in _read_in_pieces(self._truth, self._labels, first, count):
            found[start : start + len(rows)] = convert_labels(rows, self._truth.name)
        return found


def _check_range(first: int, count: int, stored: StoredArray) -> None:
    if not (first >= 0 and count >= 0 and first + count <= stored.shape[0]):
        raise ValueError(f"{stored.name} has {stored.shape[0]:,} rows, none from {first:,} to {first + count:,}")


def _read_in_pieces(
    stored: StoredArray, source: ArrayReader, first: int, count: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield ``count`` rows from ``first`` on in parts, (offset from ``first``, rows), which share one memory."""
    most = min(count, max(1, CONVERTED_BYTES // stored.row_bytes))
    memory = np.empty(most * stored.row_bytes, np.uint8)
    for start in range(0, count, most):
        rows = min(most, count - start)
        taken = memory[: rows * stored.row_bytes]
        source.fill((first + start) * stored.row_bytes, taken)
        yield start, taken.view(stored.dtype).reshape(rows, *stored.shape[1:])
