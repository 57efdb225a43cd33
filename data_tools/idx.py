"""Strict reader and writer of IDX files of unsigned bytes, the format of MNIST's family, raw or gzipped.

A file is two zero bytes, the type (0x08), the rank, one big-endian uint32 per dimension, then the items. The enlarged
files of systems 2 to 4 have four zero bytes instead and little-endian numbers: these are read, too, never written. The
reader trusts none of it: it returns exactly the file's content, or raises UserError.
"""

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from app.errors import UserError
from app.files.formats import START_BYTES, recognise
from app.files.reading import open_regular
from app.files.writing import replacing

Allocate = Callable[[int], np.ndarray]
"""Takes a number of bytes, returns that much memory as a one-dimensional uint8 array."""

MAX_BYTES = 2**31
MAX_FILE_BYTES = MAX_BYTES + (1 << 20)  # room for a header, or for gzip's growth of incompressible data
TOO_LARGE = "split it into files of fewer images"
GZIP_MAGIC = b"\x1f\x8b"
GZIP_LEVEL = 6  # higher ones take several times as long for a few percent
GZIP_MAX_RATIO = 1032  # deflate cannot pack more: 258 bytes in two bits
MAX_MEMBERS = 1 << 16  # members of a gzip file: bgzip writes 64 KiB per member
UBYTE = 0x08
OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
OLD_MAGIC = bytes(4)  # type and rank missing: old files hold bytes, of the lowest rank that is asked for
GREY = "images must be uint8 (0 to 255), N x H x W"
EXPECTED = {  # by rank
    (1,): "labels must be uint8, N",
    (3,): GREY,
    (3, 4): f"{GREY}, or in colour N x 3 x H x W or N x H x W x 3",
}
CONVERT = "convert them with NumPy and data_tools.idx.write_idx, or store them as x and y in HDF5 (README)"
CHUNK = 1 << 18


def pageable(nbytes: int) -> np.ndarray:
    """Return ordinary memory: the default ``allocate``."""
    return np.empty(nbytes, np.uint8)


class _BadError(Exception):
    """What is wrong with the file, starting with a verb, and the remedy; ``read_idx`` puts the path in front."""

    def __init__(self, what: str, remedy: str = "get a fresh copy or name another file") -> None:
        super().__init__(f"{what}; {remedy}")


class _Source(Protocol):
    def readinto(self, target: memoryview, /) -> int:
        """Read into ``target`` until it is full or the content ends; return the number of bytes."""


class _Gzip:
    """Inflates all members of a gzip file, only as requested; zlib checks CRC and length at each member's end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflater = zlib.decompressobj(wbits=31)
        self._members = 1

    def readinto(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target):
            ended = self._inflater.eof
            data = (self._inflater.unused_data if ended else self._inflater.unconsumed_tail) or self._file.read(CHUNK)
            if ended and not data:
                break
            if not data:
                raise _BadError("is a truncated gzip file")
            if ended:
                self._begin_member(data)
            piece = self._inflater.decompress(data, min(len(target) - filled, 4 * CHUNK))
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _begin_member(self, data: bytes) -> None:
        self._members += 1
        if not data.startswith(GZIP_MAGIC[:1]):
            raise _BadError("has data that is not gzip after its compressed content")
        if self._members > MAX_MEMBERS:
            raise _BadError(f"has more than {MAX_MEMBERS:,} gzip members", "compress it in one")
        self._inflater = zlib.decompressobj(wbits=31)


def read_idx(
    path: Path, rank: int | tuple[int, ...], max_items: int | None = None, allocate: Allocate = pageable
) -> np.ndarray:
    """Read an IDX file of unsigned bytes, gzipped or raw (recognised by content, not by name).

    rank: the required number of dimensions, or several to choose from. max_items: refuse a larger first dimension.
    Returns a C-contiguous uint8 array over memory from ``allocate``, which is called only for a plausible header.
    Raises UserError, naming the path, for a file that cannot be read or is not exactly one such array.
    """
    try:
        with open_regular(path, MAX_FILE_BYTES) as file:
            ranks = (rank,) if isinstance(rank, int) else rank
            return _read(file, os.fstat(file.fileno()).st_size, ranks, max_items, allocate)
    except _BadError as error:
        raise UserError(f"{path} {error}") from error
    except zlib.error as error:
        raise UserError(f"{path} is a damaged gzip file ({error}); get a fresh copy") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; copy it to another disk") from error
    except MemoryError as error:
        raise UserError(f"not enough memory for the content of {path}; use a file with fewer items") from error


def _read(file: BinaryIO, size: int, ranks: tuple[int, ...], max_items: int | None, allocate: Allocate) -> np.ndarray:
    start = file.read(16)
    file.seek(0)
    if not start:
        raise _BadError("is empty")
    zipped = start.startswith(GZIP_MAGIC)
    most = min(size * GZIP_MAX_RATIO if zipped else size, MAX_BYTES)
    source = _source(file, zipped)
    shape, *others = _read_shapes(source, ranks)
    if others:
        shape = _true_shape({shape, *others}, source, most)
        source = _source(file, zipped)
        source.readinto(memoryview(bytearray(4 + 4 * len(shape))))
    items, nbytes = shape[0], math.prod(shape)
    if nbytes == 0:
        raise _BadError(f"contains no items (shape {shape})")
    if max_items is not None and items > max_items:
        raise _BadError(f"declares {items} items, more than the {max_items} expected")
    # The header alone must not decide the allocation: the file's size limits its items.
    if nbytes > (size * GZIP_MAX_RATIO if zipped else size):
        raise _BadError(f"declares {nbytes} bytes of content, more than its {size} bytes can contain")
    if nbytes > MAX_BYTES:
        raise _BadError(f"contains {nbytes:,} bytes, more than the {MAX_BYTES:,} that are read", TOO_LARGE)
    content = allocate(nbytes)
    filled = source.readinto(content.data)
    if filled < nbytes:
        raise _BadError(f"is too short: {filled} of the {nbytes} bytes that its header declares")
    if source.readinto(memoryview(bytearray(1))):
        raise _BadError(f"is too long: data follows the {nbytes} bytes that its header declares")
    return content.reshape(shape)


def _source(file: BinaryIO, zipped: bool) -> _Source:
    """Return the file's content from its beginning."""
    file.seek(0)
    return _Gzip(file) if zipped else file  # type: ignore[return-value]


def _true_shape(shapes: set[tuple[int, ...]], source: _Source, most: int) -> tuple[int, ...]:
    """Return the one of an old header's shapes that its content has, which ``source`` is at the beginning of."""
    sizes = {shape: math.prod(shape) for shape in shapes if 0 < math.prod(shape) <= most}
    left = max(sizes.values(), default=0) + 1
    found, piece = 0, memoryview(bytearray(CHUNK))
    while filled := source.readinto(piece[: min(left - found, CHUNK)]):
        found += filled
    fitting = [shape for shape, nbytes in sizes.items() if nbytes == found]
    if len(fitting) != 1:
        either = " or ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
        fault = "and its content may be" if fitting else "but its content is not"
        raise _BadError(f"starts with four zero bytes, as old files do, {fault} {either} bytes")
    return fitting[0]


def _read_shapes(source: _Source, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape in the header; for an old one, whose byte order is unknown, those in both byte orders."""
    magic = bytearray(4)
    filled = source.readinto(memoryview(magic))
    if filled == 0:
        raise _BadError("decompresses to nothing")
    if magic[:2] != b"\0\0":
        raise _no_idx(bytes(magic[:filled]), source)
    old, rank = magic == OLD_MAGIC, magic[3]
    if filled == 4 and magic[2] != UBYTE and not old:
        kind = OTHER_TYPES.get(magic[2])
        if kind is None:
            raise _BadError(f"contains IDX items of type 0x{magic[2]:02x}, not unsigned bytes (0x08)")
        raise _BadError(f"contains {kind} (IDX type 0x{magic[2]:02x}), not unsigned bytes (0x08)", _expected(ranks))
    if filled == 4 and rank not in ranks and not old:
        needed = " or ".join(map(str, ranks))
        raise _BadError(f"is an IDX file of rank {rank}, where rank {needed} is needed", _expected(ranks))
    sizes = bytearray(4 * (min(ranks) if old or filled < 4 else rank))
    if filled < 4 or source.readinto(memoryview(sizes)) < len(sizes):
        raise _BadError(f"ends inside the {4 + len(sizes)}-byte IDX header")
    return [struct.unpack(f"{order}{len(sizes) // 4}I", sizes) for order in ("<>" if old else ">")]


def _expected(ranks: tuple[int, ...]) -> str:
    """Say what the items must be and how to convert them, for an intact file that holds something else."""
    return f"{EXPECTED[ranks]}: {CONVERT}"


def _no_idx(start: bytes, source: _Source) -> _BadError:
    """Build the error for content of another kind, named if its first bytes show it."""
    rest = bytearray(START_BYTES - len(start))
    with suppress(zlib.error, _BadError):
        start += bytes(rest[: source.readinto(memoryview(rest))])
    kind = recognise(start)
    if kind is None:
        return _BadError(f"is not an IDX file: it starts with {start[:4].hex()}")
    return _BadError(f"is {kind}, not an IDX file", "store the images or labels as IDX, or as x and y in HDF5 (README)")


def _header(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, UBYTE, len(shape), *shape)


def content_sha256(array: np.ndarray) -> str:
    """Return the SHA-256, in hexadecimal, of the uncompressed IDX file of this C-contiguous uint8 array."""
    digest = hashlib.sha256(_header(array.shape))
    digest.update(array.data)
    return digest.hexdigest()


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write a uint8 array as an IDX file, atomically; gzipped, with the same bytes each time, if the name ends in .gz.

    Raises UserError if the file cannot be written, ValueError for another dtype.
    """
    write_idx_parts(path, array.shape, [array])


def write_idx_parts(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray], *, overwrite: bool = True) -> None:
    """Write an IDX file (see ``write_idx``) of this shape from parts of its items, one after the other.

    overwrite: replace an existing file; otherwise it is a UserError.
    """
    with replacing(path, overwrite=overwrite) as temporary, ExitStack() as opened:
        target: BinaryIO = opened.enter_context(temporary.open("wb"))
        if path.name.endswith(".gz"):
            zipped = gzip.GzipFile("", "wb", GZIP_LEVEL, fileobj=target, mtime=0)
            target = opened.enter_context(zipped)  # type: ignore[assignment]
        target.write(_header(shape))
        left = math.prod(shape)
        for part in parts:
            if part.dtype != np.uint8:
                raise ValueError(f"IDX here holds uint8, not {part.dtype}")
            target.write(np.ascontiguousarray(part).data)
            left -= part.size
        if left:
            raise ValueError(f"the parts are {left} bytes short of the shape {shape}")
