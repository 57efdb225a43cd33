"""Read the bytes of stored arrays by position: plain ones at any time, the content of gzip files in order."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import BinaryIO

import numpy as np

from app.errors import UserError
from app.files.reading import open_regular
from app.shards.stored import Stored
from data_tools.idx import too_long, too_short
from data_tools.inflate import Gzip, faults

SKIP_BYTES = 1 << 20


class Source(AbstractContextManager["Source"]):
    """The bytes of an array. Its file stays as it is from the time it is opened, or is refused."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.stream: BinaryIO = open_regular(stored.path)
        self._stamp = self._now()
        if self._stamp[0] != stored.size:
            self.stream.close()
            was = f"has {self._stamp[0]:,} bytes where it had {stored.size:,}"
            raise UserError(f"{stored.path} {was} when its header was read: run again when nothing writes it")

    def fill(self, at: int, target: np.ndarray) -> None:
        """Fill ``target``, (n,) uint8, with the array's bytes from ``at`` on. Raises UserError."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Raise UserError if the file has been written since it was opened."""
        if self._now() != self._stamp:
            raise UserError(f"{self.stored.path} was written while it was read: run again when nothing writes it")

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self.stream.fileno())
        return status.st_size, status.st_mtime_ns

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def open_source(stored: Stored) -> Source:
    """Open the file of an array. Raises UserError if it cannot be opened or does not have the size that it had."""
    forms: dict[str, type[Source]] = {"plain": Plain, "gzip": Gzipped}
    return forms[stored.form](stored)


class Plain(Source):
    """Numbers that lie in the file as they are: read by position, by any number of threads at the same time."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        # Several threads read blocks one after the other: the system reads ahead of them.
        os.posix_fadvise(self.stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def fill(self, at: int, target: np.ndarray) -> None:
        """See ``Source``."""
        left, at = target.data, at + self.stored.offset
        with faults(self.stored.path):
            while left:  # one call reads 2 GiB at most
                count = os.preadv(self.stream.fileno(), [left], at)
                if not count:
                    break
                left, at = left[count:], at + count
        self.check_unchanged()
        if left:
            raise UserError(f"{self.stored.path} ends at byte {at:,}, before its numbers do: get a fresh copy")


class Gzipped(Source):
    """The content of a gzip file: inflated from the beginning on, and from there again where a position lies behind.

    Checksums and length are checked at the end of the array.
    """

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.stream.seek(0)
        self._content, self._at = Gzip(self.stream, self.stored.size), 0

    def fill(self, at: int, target: np.ndarray) -> None:
        """See ``Source``."""
        with self._lock, faults(self.stored.path):
            start = at + self.stored.offset
            if start < self._at:
                self._begin()
            skipped = np.empty(min(SKIP_BYTES, start - self._at), np.uint8)
            while self._at < start:
                self._take(skipped[: start - self._at])
            self._take(target)
            if self._at == self.stored.offset + self.stored.nbytes and self._content.readinto(memoryview(bytearray(1))):
                raise too_long(self.stored.nbytes)
            self.check_unchanged()

    def _take(self, target: np.ndarray) -> None:
        count = self._content.readinto(target.data)
        self._at += count
        if count < len(target):
            raise too_short(self._at - self.stored.offset, self.stored.nbytes)
