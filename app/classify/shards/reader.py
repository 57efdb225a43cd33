"""Read a shard's images and labels by position, in the layout that the engine takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import numpy as np

from app.classify.shards.sources import ArrayReader, Stored, open_array
from app.files import hdf5_process
from data_tools.dataset import channel_dimension, check_fractions, class_labels

CONVERTED_BYTES = 4 << 20  # rows converted at a time


class ShardReader(AbstractContextManager["ShardReader"]):
    """Reads the images and labels of a shard. Every fault of a file is a UserError of one line with its path.

    Several threads may share a reader. They read uncompressed images in parallel, directly into the caller's memory.
    They read a sequential shard one after another; going back restarts at the first image. A helper process for chunked
    HDF5 ends with the thread that first read.
    """

    def __init__(self, images: Stored, truth: Stored | None, shape: tuple[int, int, int], dtype: np.dtype) -> None:
        self._stored = images
        self._truth = truth
        self._shape = shape
        self._dtype = dtype
        self._opened = ExitStack()
        self._hdf5 = self._opened.enter_context(hdf5_process.Reader())
        self._images = self._opened.enter_context(open_array(images, self._hdf5))
        self._labels: ArrayReader | None = None
        self._opening = threading.Lock()
        last = len(images.shape) == 4 and channel_dimension(images.shape, images.name) == 3
        self._order = (0, 3, 1, 2) if last else None
        self._as_stored = images.dtype == dtype and (not last or shape[0] == 1)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
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
                check_fractions(out, self._stored.name)
            return
        for start, rows in _read_in_pieces(self._stored, self._images, first, count):
            if rows.dtype != np.uint8:
                check_fractions(rows, self._stored.name)
            if rows.ndim == 3:
                rows = rows[:, None]
            elif self._order is not None:
                rows = rows.transpose(self._order)
            out[start : start + len(rows)] = rows

    def labels(self, first: int, count: int) -> np.ndarray:
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
            found[start : start + len(rows)] = class_labels(rows, self._truth.name)
        return found


def _check_range(first: int, count: int, stored: Stored) -> None:
    if not (first >= 0 and count >= 0 and first + count <= stored.shape[0]):
        raise ValueError(f"{stored.name} has {stored.shape[0]:,} rows, none from {first:,} to {first + count:,}")


def _read_in_pieces(stored: Stored, source: ArrayReader, first: int, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (offset from ``first``, rows as stored). Later rows reuse the memory."""
    most = min(count, max(1, CONVERTED_BYTES // stored.row_bytes))
    memory = np.empty(most * stored.row_bytes, np.uint8)
    for start in range(0, count, most):
        rows = min(most, count - start)
        taken = memory[: rows * stored.row_bytes]
        source.fill((first + start) * stored.row_bytes, taken)
        yield start, taken.view(stored.dtype).reshape(rows, *stored.shape[1:])
