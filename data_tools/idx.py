"""Read and write IDX files of unsigned bytes, the format of MNIST's files, raw or gzipped, strictly.

A file is two zero bytes, the type (0x08), the rank, one big-endian uint32 per dimension, then the items. Files of some
older programs begin with four zero bytes instead and may have little-endian sizes; the reader accepts these files, too.
The reader returns exactly the file's content, or raises UserError.
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

from app.base.frozen import Frozen
from app.files.reading import open_regular
from app.files.writing import replace_atomically
from data_tools.inflate import CHUNK, GZIP_MAGIC, GZIP_MAX_RATIO, BadFileError, GzipReader, faults_as_user_errors

Allocate = Callable[[int], np.ndarray]
"""Takes a number of bytes, returns that much memory as a one-dimensional uint8 array."""

MAX_BYTES = 2**31
MAX_FILE_BYTES = MAX_BYTES + (1 << 20)  # includes the header, and what gzip adds to incompressible data
TOO_LARGE = "split it into files of fewer images, or classify it as it is: python main.py classify FILE --out DIR"
GZIP_LEVEL = 6  # higher levels take several times as long and save a few percent
UBYTE = 0x08
OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
OLD_MAGIC = bytes(4)  # old files lack type and rank: they contain bytes, of the lowest rank that the caller accepts
GREY = "images must be uint8 (0 to 255), N x H x W"
EXPECTED = {  # accepted ranks → text of the remedy
    (1,): "labels must be uint8, N",
    (3,): GREY,
    (3, 4): f"{GREY}, or in colour N x 3 x H x W or N x H x W x 3",
}
CONVERT = "convert them with NumPy and data_tools.idx.write_idx, or store them as x and y in HDF5 (docs/networks.md)"


def allocate_pageable(nbytes: int) -> np.ndarray:
    """Return ordinary memory, (nbytes,) uint8."""
    return np.empty(nbytes, np.uint8)


class _Source(Protocol):
    def readinto(self, target: memoryview, /) -> int:
        """Read into ``target`` until it is full or the content ends; return the number of bytes."""


def read_idx(
    path: Path, rank: int | tuple[int, ...], max_items: int | None = None, allocate: Allocate = allocate_pageable
) -> np.ndarray:
    """Return the array in an IDX file of unsigned bytes, gzipped or raw (recognised by content, not by name).

    rank: the required number of dimensions, or several to choose from. max_items: largest accepted first dimension. The
    array is C-contiguous uint8, in memory from ``allocate``, which is called only for a plausible header. Raises
    UserError, naming the path, for a file that cannot be read or is not exactly one such array.
    """
    ranks = (rank,) if isinstance(rank, int) else rank
    with faults_as_user_errors(path), open_regular(path, MAX_FILE_BYTES, TOO_LARGE) as file:
        shape, source = _open_items(file, os.fstat(file.fileno()).st_size, ranks)
        items, nbytes = shape[0], math.prod(shape)
        if max_items is not None and items > max_items:
            raise BadFileError(f"declares {items} items, more than the {max_items} expected")
        if nbytes > MAX_BYTES:
            raise BadFileError(f"contains {nbytes:,} bytes, more than the {MAX_BYTES:,} that are read", TOO_LARGE)
        content = allocate(nbytes)
        filled = source.readinto(content.data)
        if filled < nbytes:
            raise too_short_error(filled, nbytes)
        if source.readinto(memoryview(bytearray(1))):
            raise too_long_error(nbytes)
        return content.reshape(shape)


class Layout(Frozen):
    """Where the items are in an IDX file. shape: (N, …) of all items. size: bytes of the file.

    offset: position of the first item in bytes, in the decompressed content. zipped: whether the file is gzipped.
    """

    shape: tuple[int, ...]
    offset: int
    zipped: bool
    size: int


def read_layout(path: Path, ranks: tuple[int, ...]) -> Layout:
    """Return the layout that the header of an IDX file of any size declares. Raises UserError.

    The size of a raw file must fit this layout exactly; a gzipped file may turn out not to fit when it is read.
    """
    with faults_as_user_errors(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        shape, source = _open_items(file, size, ranks)
        offset, zipped, nbytes = 4 + 4 * len(shape), isinstance(source, GzipReader), math.prod(shape)
        if not zipped and size - offset < nbytes:
            raise too_short_error(size - offset, nbytes)
        if not zipped and size - offset > nbytes:
            raise too_long_error(nbytes)
        return Layout(shape, offset, zipped, size)


def _open_items(file: BinaryIO, size: int, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], _Source]:
    """Return the shape of the items, and a reader of the content after the header.

    size: bytes of the file, which limit the shape. Raises BadFileError.
    """
    start = file.read(16)
    if not start:
        raise BadFileError("is empty")
    most = size * GZIP_MAX_RATIO if start.startswith(GZIP_MAGIC) else size
    source = _open_content(file, size)
    shape, *others = _read_shapes(source, ranks)
    if others:
        shape = _select_matching_shape({shape, *others}, file, size, most)
        source = _open_content(file, size)
        source.readinto(memoryview(bytearray(4 + 4 * len(shape))))
    if 0 in shape:
        raise BadFileError(f"contains no items (shape {shape})")
    # The header alone must not decide the allocation: the file's size limits its items.
    if math.prod(shape) > most:
        raise BadFileError(f"declares {math.prod(shape)} bytes of content, more than its {size} bytes can contain")
    return shape, source


def too_short_error(found: int, nbytes: int) -> BadFileError:
    """Return the error for content that has only ``found`` of the ``nbytes`` bytes of items."""
    return BadFileError(f"is too short: {found} of the {nbytes} bytes that its header declares")


def too_long_error(nbytes: int) -> BadFileError:
    """Return the error for content that continues after its items."""
    return BadFileError(f"is too long: data follows the {nbytes} bytes that its header declares")


def _open_content(file: BinaryIO, size: int) -> _Source:
    """Return a reader of the file from its beginning; it decompresses gzip."""
    file.seek(0)
    zipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    file.seek(0)
    return GzipReader(file, size) if zipped else file  # type: ignore[return-value]


def _select_matching_shape(shapes: set[tuple[int, ...]], file: BinaryIO, size: int, most: int) -> tuple[int, ...]:
    """Return the one of several possible ``shapes`` whose number of items equals the length of the content.

    size: bytes of the file. most: largest accepted number of items. Raises BadFileError unless exactly one shape fits.
    """
    sizes = {shape: math.prod(shape) for shape in shapes if 0 < math.prod(shape) <= most}
    source, start = _open_content(file, size), 4 + 4 * len(min(shapes))
    found = size - start
    if isinstance(source, GzipReader):
        left = start + max(sizes.values(), default=0) + 1
        found, block = -start, memoryview(bytearray(CHUNK))
        while filled := source.readinto(block[: min(left - start - found, CHUNK)]):
            found += filled
    fitting = [shape for shape, nbytes in sizes.items() if nbytes == found]
    if len(fitting) != 1:
        either = " or ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
        fault = "and its content may be" if fitting else "but its content is not"
        raise BadFileError(f"starts with four zero bytes, as old files do, {fault} {either} bytes")
    return fitting[0]


def _read_shapes(source: _Source, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape in the header; for the old systems' headers, the shapes in both byte orders."""
    magic = bytearray(4)
    filled = source.readinto(memoryview(magic))
    if filled == 0:
        raise BadFileError("decompresses to nothing")
    if magic[:2] != b"\0\0":
        raise _not_idx_error(bytes(magic[:filled]), source)
    old, rank = magic == OLD_MAGIC, magic[3]
    if filled == 4 and magic[2] != UBYTE and not old:
        kind = OTHER_TYPES.get(magic[2])
        if kind is None:
            raise BadFileError(f"contains IDX items of type 0x{magic[2]:02x}, not unsigned bytes (0x08)")
        raise BadFileError(
            f"contains {kind} (IDX type 0x{magic[2]:02x}), not unsigned bytes (0x08)", _describe_expected_items(ranks)
        )
    if filled == 4 and rank not in ranks and not old:
        needed = " or ".join(map(str, ranks))
        raise BadFileError(
            f"is an IDX file of rank {rank}, where rank {needed} is needed", _describe_expected_items(ranks)
        )
    sizes = bytearray(4 * (min(ranks) if old or filled < 4 else rank))
    if filled < 4 or source.readinto(memoryview(sizes)) < len(sizes):
        raise BadFileError(f"ends inside the {4 + len(sizes)}-byte IDX header")
    return [struct.unpack(f"{order}{len(sizes) // 4}I", sizes) for order in ("<>" if old else ">")]


def _describe_expected_items(ranks: tuple[int, ...]) -> str:
    """Return text on what the items must be and how to convert others, for the error about an intact file."""
    return f"{EXPECTED[ranks]}: {CONVERT}"


def _not_idx_error(start: bytes, source: _Source) -> BadFileError:
    """Return the error for content that is not IDX. It names the kind of file if ``start``, the first bytes, tells."""
    from app.files.reading import START_BYTES, recognise_file_kind  # imported only here: to name what is no IDX file

    rest = bytearray(START_BYTES - len(start))
    with suppress(zlib.error, BadFileError):
        start += bytes(rest[: source.readinto(memoryview(rest))])
    kind = recognise_file_kind(start)
    if kind is None:
        return BadFileError(f"is not an IDX file: it starts with {start[:4].hex()}")
    return BadFileError(
        f"is {kind}, not an IDX file", "store the images or labels as IDX, or as x and y in HDF5 (docs/networks.md)"
    )


def _encode_header(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, UBYTE, len(shape), *shape)


def content_sha256(array: np.ndarray) -> str:
    """Return the SHA-256, in hexadecimal, of the uncompressed IDX file of this C-contiguous uint8 array."""
    digest = hashlib.sha256(_encode_header(array.shape))
    digest.update(array.data)
    return digest.hexdigest()


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write a uint8 array as an IDX file, atomically. The file is gzipped if its name ends in .gz.

    Equal arrays give equal bytes. Raises UserError if the file cannot be written, and ValueError for another dtype.
    """
    write_idx_parts(path, array.shape, [array])


def write_idx_parts(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray], *, overwrite: bool = True) -> None:
    """Write an IDX file of this shape, as ``write_idx`` does, from consecutive parts of its items.

    overwrite: replace an existing file. Raises UserError if it exists and ``overwrite`` is false, and ValueError if the
    parts do not fill the shape.
    """
    with replace_atomically(path, overwrite=overwrite) as temporary, ExitStack() as opened:
        target: BinaryIO = opened.enter_context(temporary.open("wb"))
        if path.name.endswith(".gz"):
            zipped = gzip.GzipFile("", "wb", GZIP_LEVEL, fileobj=target, mtime=0)
            target = opened.enter_context(zipped)  # type: ignore[assignment]
        target.write(_encode_header(shape))
        left = math.prod(shape)
        for part in parts:
            if part.dtype != np.uint8:
                raise ValueError(f"IDX here holds uint8, not {part.dtype}")
            target.write(np.ascontiguousarray(part).data)
            left -= part.size
        if left:
            raise ValueError(f"the parts are {left} bytes short of the shape {shape}")
