"""Read the bytes of arrays in NPY, IDX and HDF5 files: at any position, or in order if the file is compressed."""

from __future__ import annotations

import os
import sys
import threading
from abc import abstractmethod
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files import hdf5_process
from app.files.reading import open_regular
from data_tools.idx import too_long_error, too_short_error
from data_tools.inflate import GzipReader, faults_as_user_errors


class StoredArray(Frozen):
    """Where and how a C-contiguous array is stored in a file. Picklable, so that other processes can read the array.

    path: absolute path. name: what errors call the array. shape: (N, ...). dtype: type in the byte order of the file.
    size, mtime_ns: size and time of the file. offset: position in bytes at which the array begins, in the file or in
    its decompressed content. zipped: whether it is a gzip file. dataset: the array's name in an HDF5 file. band: rows
    per HDF5 chunk; 0 if the array has no chunks.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    size: int
    mtime_ns: int
    offset: int
    zipped: bool = False
    dataset: str = ""
    band: int = 0

    @property
    def storage_form(self) -> Literal["plain", "gzip", "chunks"]:
        """Return how the array is stored: uncompressed, in a gzip file, or in HDF5 chunks."""
        return "gzip" if self.zipped else "chunks" if self.band else "plain"

    @property
    def row_bytes(self) -> int:
        """Return the size in bytes of one item along the first dimension, such as an image."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Return the size of the whole array in bytes."""
        return self.shape[0] * self.row_bytes


SKIP_BYTES = 1 << 20  # decompressed at a time on the way to a position
BAND_BYTES = 16 << 20  # read at a time from HDF5 chunks; at least the rows of one chunk


class ArrayReader(AbstractContextManager["ArrayReader"]):
    """Base class of readers of a stored array's bytes. Raises UserError if the file's size is not the recorded one."""

    def __init__(self, stored: StoredArray) -> None:
        self.stored = stored
        self.stream: BinaryIO = open_regular(stored.path)
        self._stamp = self._current_size_and_mtime()
        if self._stamp[0] != stored.size:
            self.stream.close()
            was = f"has {self._stamp[0]:,} bytes where it had {stored.size:,}"
            raise UserError(f"{stored.path} {was} when its header was read: run again when nothing writes it")

    @abstractmethod
    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill ``target``, (n,) uint8, with the array's bytes from byte ``at`` on. Raises UserError."""

    def check_unchanged(self) -> None:
        """Raise UserError if the file was written after it was opened."""
        if self._current_size_and_mtime() != self._stamp:
            raise UserError(f"{self.stored.path} was written while it was read: run again when nothing writes it")

    def _current_size_and_mtime(self) -> tuple[int, int]:
        status = os.fstat(self.stream.fileno())
        return status.st_size, status.st_mtime_ns

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def open_array(stored: StoredArray, hdf5: hdf5_process.Reader) -> ArrayReader:
    """Return a reader of the array, a context manager. Raises UserError if the file is unreadable or its size changed.

    hdf5: process that reads HDF5 chunks; it ends with the thread that first asks for one.
    """
    if stored.storage_form == "chunks":
        return ChunkReader(stored, hdf5)
    return GzipArrayReader(stored) if stored.storage_form == "gzip" else PlainReader(stored)


class PlainReader(ArrayReader):
    """Reader of an uncompressed array, at any position. Any number of threads may call it in parallel."""

    def __init__(self, stored: StoredArray) -> None:
        super().__init__(stored)
        # Threads read consecutive blocks: let the system read ahead.
        os.posix_fadvise(self.stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill ``target``, (n,) uint8, with the array's bytes from byte ``at`` on. Raises UserError."""
        left, at = target.data, at + self.stored.offset
        with faults_as_user_errors(self.stored.path):
            while left:  # one call reads 2 GiB at most
                count = os.preadv(self.stream.fileno(), [left], at)
                if not count:
                    break
                left, at = left[count:], at + count
        self.check_unchanged()
        if left:
            raise UserError(f"{self.stored.path} ends at byte {at:,}, before its numbers do: get a fresh copy")


class GzipArrayReader(ArrayReader):
    """Reader of an array in a gzip file, which is decompressed in order; an earlier position restarts at the beginning.

    At the end of the array it compares the checksum and the length with those in the file.
    """

    def __init__(self, stored: StoredArray) -> None:
        super().__init__(stored)
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self.stream.seek(0)
        self._content, self._at = GzipReader(self.stream, self.stored.size), 0

    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill ``target``, (n,) uint8, with the array's bytes from byte ``at`` on. Raises UserError."""
        with self._lock, faults_as_user_errors(self.stored.path):
            start = at + self.stored.offset
            if start < self._at:
                self._restart()
            found, self._at = self._at, sys.maxsize  # a fault leaves the position unknown: restart then
            skipped = np.empty(min(SKIP_BYTES, start - found), np.uint8)
            while found < start:
                found += self._decompress_into(skipped[: start - found], found)
            found += self._decompress_into(target, found)
            if found == self.stored.offset + self.stored.nbytes and self._content.readinto(memoryview(bytearray(1))):
                raise too_long_error(self.stored.nbytes)
            self.check_unchanged()
            self._at = found

    def _decompress_into(self, target: np.ndarray, at: int) -> int:
        count = self._content.readinto(target.data)
        if count < len(target):
            raise too_short_error(at + count - self.stored.offset, self.stored.nbytes)
        return count


class ChunkReader(ArrayReader):
    """Reader of a dataset in HDF5 chunks. It reads whole chunks, and keeps the last of them for the next call."""

    def __init__(self, stored: StoredArray, hdf5: hdf5_process.Reader) -> None:
        super().__init__(stored)
        self._lock = threading.Lock()
        self._hdf5 = hdf5
        self._step = stored.band * max(1, BAND_BYTES // (stored.band * stored.row_bytes))
        self._first = 0
        self._band = np.empty(0, np.uint8)

    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill ``target``, (n,) uint8, with the array's bytes from byte ``at`` on. Raises UserError."""
        filled = 0
        with self._lock:
            while filled < len(target):
                row = (at + filled) // self.stored.row_bytes
                if row // self._step * self._step != self._first or not len(self._band):
                    self._read_chunk_rows(row // self._step * self._step)
                start = at + filled - self._first * self.stored.row_bytes
                taken = self._band[start : start + len(target) - filled]
                target[filled : filled + len(taken)] = taken
                filled += len(taken)

    def _read_chunk_rows(self, first: int) -> None:
        stored = self.stored
        self._band = np.empty(0, np.uint8)  # free its memory before the next one is read
        shape = (min(self._step, stored.shape[0] - first), *stored.shape[1:])
        rows = self._hdf5.read_rows(stored.path, self.stream, stored.dataset, first, shape, stored.dtype)
        self.check_unchanged()
        self._first, self._band = first, rows.reshape(-1).view(np.uint8)
