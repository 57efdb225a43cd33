"""Decompress gzip files block by block, and report their faults as UserErrors of one line."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.base.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
GZIP_MAX_RATIO = 1032  # largest compression of deflate: 258 bytes in two bits
# Limit of a gzip file's members: MAX_MEMBERS, and one more for every MEMBER_BYTES of the file. (bgzip packs 64 KiB into
# each member.)
MAX_MEMBERS, MEMBER_BYTES = 1 << 16, 1 << 10
CHUNK = 1 << 18


class BadFileError(Exception):
    """A file is bad. The text is the fault, starting with a verb, and the remedy; callers put the path before it."""

    def __init__(self, what: str, remedy: str = "get a fresh copy or name another file") -> None:
        super().__init__(f"{what}; {remedy}")


class GzipReader:
    """Decompresses all members of a gzip file on request; zlib checks CRC and length at the end of each member.

    Use it within ``faults_as_user_errors``, which converts its exceptions.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        """Start at the beginning of an open file of ``size`` bytes."""
        self._file = file
        self._max_members = MAX_MEMBERS + size // MEMBER_BYTES
        self._inflater = zlib.decompressobj(wbits=31)
        self._members = 1

    def readinto(self, target: memoryview) -> int:
        """Read into ``target`` until it is full or the content ends; return the number of bytes."""
        filled = 0
        while filled < len(target):
            ended = self._inflater.eof
            data = (self._inflater.unused_data if ended else self._inflater.unconsumed_tail) or self._file.read(CHUNK)
            if ended and not data:
                break
            if not data:
                raise BadFileError("is a truncated gzip file")
            if ended:
                self._begin_member(data)
            block = self._inflater.decompress(data, min(len(target) - filled, 4 * CHUNK))
            target[filled : filled + len(block)] = block
            filled += len(block)
        return filled

    def _begin_member(self, data: bytes) -> None:
        self._members += 1
        if not data.startswith(GZIP_MAGIC[:1]):
            raise BadFileError("has data that is not gzip after its compressed content")
        if self._members > self._max_members:
            raise BadFileError(f"has more than {self._max_members:,} gzip members", "compress it in one")
        self._inflater = zlib.decompressobj(wbits=31)


@contextmanager
def faults_as_user_errors(path: Path) -> Iterator[None]:
    """Convert exceptions in the ``with`` block that mean a fault of the file at ``path`` to UserError."""
    try:
        yield
    except BadFileError as error:
        raise UserError(f"{path} {error}") from error
    except zlib.error as error:
        raise UserError(f"{path} is a damaged gzip file ({error}); get a fresh copy") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; copy it to another disk") from error
    except MemoryError as error:
        raise UserError(f"not enough memory for the content of {path}; use a file with fewer items") from error
