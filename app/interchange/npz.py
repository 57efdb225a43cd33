"""Read and write NPZ files, which are zip archives of NPY files, without pickle and within limits of size."""

import io
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from app.files.checks import BadValueError, format_for_error
from app.interchange.named_arrays import MAX_ARRAYS, NamedArrays, match_to_network, parse_description
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, Source
from app.network.foreign import DESCRIPTION

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
MAX_HEADER_BYTES = 1 << 16  # NumPy reads no header of more than 10,000 characters
MAX_DIMENSIONS = 32  # NumPy 1 has no more
BLOCK_BYTES = 1 << 20
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes


class Header(NamedTuple):
    """The header of an NPY file. order: ``C``, by rows, or ``F``, by columns. offset: position of the data in bytes."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype
    offset: int

    def check_size(self, name: str, size: int) -> None:
        """Raise BadValueError unless ``size`` is the length of the file in bytes. name: name of the array."""
        if self.offset + prod(self.shape) * self.dtype.itemsize != size:
            raise BadValueError(f"{name} does not have the bytes that its shape needs; get a fresh copy")


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return an NPZ file's arrays and their network, given in ``options`` or the file. Raises BadValueError."""
    return match_to_network(read_npz(content), options)


def read_npz(content: bytes) -> NamedArrays:
    """Return all arrays of an NPZ file. Raises BadValueError for damage and for arrays of objects (pickles)."""
    arrays = read_arrays(content, MAX_FILE_BYTES)
    text = arrays.pop(DESCRIPTION, None)
    return NamedArrays(arrays, None if text is None else parse_description(_decode_string_array(text)))


def read_arrays(
    content: bytes, max_bytes: int, wanted: Callable[[Mapping[str, Header]], Iterable[str]] = list
) -> dict[str, np.ndarray]:
    """Return arrays of an NPZ file, read-only, by name. max_bytes: limit of the unpacked size of all members.

    wanted: function from all headers by name to the names to read (default: all); it is called, and may raise an error,
    before any data is unpacked. Raises BadValueError for damage, and for arrays of objects, which are pickles.
    """
    with open_zip(content, max_bytes) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        headers: dict[str, Header] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise BadValueError(f"contains {format_for_error(name)} twice; save it again")
            if member.compress_type not in COMPRESSIONS:
                raise BadValueError(
                    f"{format_for_error(name)} is packed in a way that NumPy does not write; save it again"
                )
            members[name] = member
            headers[name] = read_header(format_for_error(name), unpack_member(archive, member, MAX_HEADER_BYTES))
            headers[name].check_size(format_for_error(name), member.file_size)
        unpacked = {name: unpack_member(archive, members[name]) for name in wanted(headers)}
    return {name: read_array(format_for_error(name), found) for name, found in unpacked.items()}


@contextmanager
def open_zip(content: bytes, max_bytes: int) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for a ``with`` block. Raises BadValueError for a damaged archive, also in the block.

    Also raises BadValueError for more than MAX_ARRAYS members, and for more than ``max_bytes`` of unpacked data.
    """
    try:
        # Each entry of the directory has this signature. Opening the archive would create an object for each.
        if (count := content.count(b"PK\x01\x02")) > MAX_ARRAYS:
            raise BadValueError(f"holds {count:,} arrays; at most {MAX_ARRAYS:,} are read: store less in it")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > max_bytes:
                raise BadValueError(f"unpacks to {size:,} bytes; at most {max_bytes:,} are read: store less in it")
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(
            f"is no zip archive that can be read: {format_for_error(str(error))}; get a fresh copy"
        ) from None


def build_npz_bytes(named: NamedArrays) -> bytes:
    """Return the content of an NPZ file; equal arguments give equal bytes."""
    arrays = dict(named.arrays)
    if named.description is not None:
        arrays[DESCRIPTION] = np.array(named.description.json.encode())  # NumPy stores str as UTF-32, bytes as they are
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    return stream.getvalue()


def _decode_string_array(array: np.ndarray) -> str:
    """Return the text of an array that consists of one byte string in UTF-8; '' for any other array."""
    try:
        return bytes(array.item()).decode("utf-8") if array.dtype.kind == "S" else ""
    except ValueError:  # several strings, or no UTF-8
        return ""


def unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int = sys.maxsize) -> memoryview:
    """Return the first ``most`` unpacked bytes of a member, but no more than its header declares."""
    content = memoryview(bytearray(min(most, member.file_size)))
    filled = 0
    with archive.open(member) as stream:
        # In blocks, because ``read`` would unpack the whole stream and then cut it.
        while block := stream.read(min(BLOCK_BYTES, len(content) - filled)):
            content[filled : filled + len(block)] = block
            filled += len(block)
    return content[:filled].toreadonly()


def read_array(name: str, content: bytes | memoryview) -> np.ndarray:
    """Return the array of an NPY file, a read-only view of ``content``. name: what errors call the array.

    Raises BadValueError for damage, for data that is not numeric, and for arrays of objects, which are pickles.
    """
    data = memoryview(content)
    header = read_header(name, data[:MAX_HEADER_BYTES])
    header.check_size(name, len(data))
    return np.frombuffer(data[header.offset :], header.dtype).reshape(header.shape, order=header.order)


def read_header(name: str, start: bytes | memoryview) -> Header:
    """Return the header of an NPY file. name: what errors call the array.

    start: the first ``MAX_HEADER_BYTES`` or more of the file, or all of it. Raises BadValueError for damage, for data
    that is neither numeric nor text, and for arrays of objects, which are pickles.
    """
    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about headers that Python 2 wrote
            shape, in_columns, dtype = _HEADERS[version](stream)
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        raise BadValueError(f"{name} is no array: {format_for_error(str(error))}; save it again") from None
    if dtype.hasobject:
        raise BadValueError(f"{name} contains pickled objects, which may run code; store plain numbers")
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise BadValueError(f"{name} is {format_for_error(str(dtype))}, of no numbers; store plain numbers")
    if 0 in shape:
        raise BadValueError(f"{name} is empty, its shape is {shape}; save it with content")
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size > 0 for size in shape):
        raise BadValueError(f"{name} does not have the bytes that its shape needs; get a fresh copy")
    return Header(shape, "F" if in_columns else "C", dtype, stream.tell())
