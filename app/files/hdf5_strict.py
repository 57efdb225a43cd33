"""Read HDF5 strictly: check every dataset, by its header and its chunks, before reading it.

Links and datasets may point into other files (even from a file opened from memory), two kilobytes can declare
petabytes, filters inflate, and missing data reads as zeros.
"""

import math
import mmap
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from app.errors import UserError
from app.files.hdf5 import MAX_ATTRIBUTE_BYTES, Attribute, Contents, Wanted, printable

MAX_ARRAY_BYTES = 1 << 30
MAX_NAMES = 1000
MAX_NAME_BYTES = 255
MAX_CHUNKS = 1 << 20

_COMPRESSIONS = {h5py.h5z.FILTER_LZF, h5py.h5z.FILTER_DEFLATE}
_FILTERS = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32} | _COMPRESSIONS
_CHECKSUM_BYTES = 4
_PLAIN = "store it as plain numbers in this file"
# The errors that h5py's layers raise for broken files.
_H5PY_ERRORS = (OSError, LookupError, RuntimeError, ValueError, TypeError, OverflowError)
_NO_MEMORY = re.compile(
    "memory allocation failed|(unable to|can't) allocate|no space available for allocation", re.IGNORECASE
)

Allocate = Callable[[tuple[int, ...], np.dtype, int], np.ndarray]
"""Returns an array of this shape and type. The third argument is the size of a chunk in bytes, 0 without chunks."""


def _ordinary(shape: tuple[int, ...], kind: np.dtype, _: int) -> np.ndarray:
    return np.empty(shape, kind)


class StrictFile:
    """An HDF5 file open for reading, limited to the numeric datasets and small attributes of its root."""

    def __init__(self, path: Path, file: h5py.File, size: int) -> None:
        self._path = path
        self._file = file
        self._id = file.id  # the low-level calls used here never follow a link
        self._size = size
        self._read: dict[tuple[int, int], str] = {}  # position of a dataset in the file → its name

    def names(self) -> tuple[str, ...]:
        """Return the names of everything in the root except groups; ``array`` refuses those that cannot be read.

        Raises UserError if there are more than MAX_NAMES, groups included, or one is longer than MAX_NAME_BYTES.
        """
        with _user_errors(self._path):
            found: list[bytes] = []

            def note(name: bytes) -> bool | None:
                found.append(name)
                return len(found) > MAX_NAMES or len(name) > MAX_NAME_BYTES or None

            self._id.links.iterate(note)  # stops when ``note`` returns True
            if len(found) > MAX_NAMES or len(max(found, key=len, default=b"")) > MAX_NAME_BYTES:
                much = f"more than {MAX_NAMES:,} names" if len(found) > MAX_NAMES else "a name that is too long"
                raise UserError(f"{self._path} has {much} in its root; copy the needed arrays to a new file")
            return tuple(sorted(name.decode() for name in found if not self._is_group(name)))

    def array(self, name: str, max_bytes: int = MAX_ARRAY_BYTES, allocate: Allocate = _ordinary) -> np.ndarray:
        """Read the root dataset ``name``: integers or floats of up to 8 bytes, native byte order, C-contiguous.

        Raises UserError if it is missing, unreadable, larger than ``max_bytes``, already read by another name, or not
        plain numbers that are all stored in this very file.
        """
        with _user_errors(self._path):
            reason = self._reason_against_link(name.encode())
            if not reason:
                dataset = h5py.Dataset(h5py.h5d.open(self._id, name.encode()))
                reason = self._reason_against(dataset, max_bytes)
            if reason:
                raise UserError(f"{self._path}: dataset {printable(repr(name))} {reason}")
            chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
            array = allocate(dataset.shape, dataset.dtype.newbyteorder("="), chunk)
            if chunk and _chunks_are_lacking(dataset, chunk):
                raise UserError(
                    f"{self._path}: dataset {printable(repr(name))} lacks some of its chunks, or parts of them, which "
                    "would be read as zeros; get a fresh copy or write it whole"
                )
            if array.size:
                dataset.read_direct(array)
            return array

    def attribute(self, name: str) -> Attribute | None:
        """Read the root attribute ``name``: a string, a number or a list of them; None if there is none.

        Raises UserError if it is unreadable, larger than 64 KiB or of any other type. HDF5 can loop for ever over
        damaged text of variable length: read untrusted files by ``read_untrusted``, which ends that.
        """
        with _user_errors(self._path):
            if not h5py.h5a.exists(self._id, name.encode()):
                return None
            attribute = h5py.h5a.open(self._id, name.encode())
            kind, shape = attribute.get_type(), attribute.shape
            is_text = isinstance(kind, h5py.h5t.TypeStringID) and shape == ()
            if shape is None or not (is_text or _is_plain_number(kind, attribute.dtype)):
                raise UserError(f"{self._path}: attribute {name!r} is neither one string nor numbers; remove it")
            too_large = UserError(f"{self._path}: attribute {name!r} is larger than 64 KiB; remove it")
            if math.prod(shape) * kind.get_size() > MAX_ATTRIBUTE_BYTES:
                raise too_large
            value = self._file.attrs[name]
            if not is_text:
                return value.tolist()
            text = value.encode() if isinstance(value, str) else value  # text of variable length is a str already
            if len(text) > MAX_ATTRIBUTE_BYTES:
                raise too_large
            return text.decode()

    def _is_group(self, name: bytes) -> bool:
        """Return whether the name is a group. Only hard links are followed: others could lead out of the file."""
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return False
        return h5py.h5o.get_info(self._id, name).type == h5py.h5o.TYPE_GROUP

    def _reason_against_link(self, name: bytes) -> str | None:
        """Return why the link to a dataset must not be followed, and the remedy; None if it may."""
        # A path through groups could contain any kind of link.
        if b"/" in name or name == b"." or not self._id.links.exists(name):
            return "is missing; store it in the root of the file"
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return f"is a soft or external link; {_PLAIN}"
        found = h5py.h5o.get_info(self._id, name)
        if found.type != h5py.h5o.TYPE_DATASET:
            return f"is a group or a type, not a dataset; {_PLAIN}"
        first = self._read.setdefault((found.fileno, found.addr), name.decode())
        return None if first == name.decode() else f"is dataset {printable(repr(first))} by another name; {_PLAIN}"

    def _reason_against(self, dataset: h5py.Dataset, max_bytes: int) -> str | None:
        """Return why ``dataset`` must not be read, by what its header declares, and the remedy; None if it may."""
        layout = dataset.id.get_create_plist()
        kind = dataset.id.get_type()
        if layout.get_external_count() > 0:
            return f"keeps its data in another file; {_PLAIN}"
        if dataset.is_virtual:
            return f"is virtual, a view of other files; {_PLAIN}"
        if not _is_plain_number(kind, dataset.dtype):
            return f"contains something other than integers or floats of up to 8 bytes; {_PLAIN}"
        if dataset.shape is None:
            return f"is empty; {_PLAIN}"
        nbytes = math.prod(dataset.shape) * kind.get_size()
        if nbytes > max_bytes:
            return f"declares {nbytes:,} bytes, more than the {max_bytes:,} allowed; split the file or store less in it"
        stored = dataset.id.get_storage_size()
        if stored > self._size:
            return f"claims {stored:,} stored bytes in a file of {self._size:,}; get a fresh copy"
        if layout.get_layout() == h5py.h5d.CHUNKED:
            return _reason_against_chunks(dataset, layout)
        return None if stored == nbytes else f"declares {nbytes:,} bytes but stores {stored:,}; write it whole"


def _reason_against_chunks(dataset: h5py.Dataset, layout: h5py.h5p.PropDCID) -> str | None:
    filters = _filters(layout)
    if not set(filters) <= _FILTERS or len(set(filters)) < len(filters) or set(filters) >= _COMPRESSIONS:
        return f"uses filters other than gzip or lzf, shuffle and fletcher32, each once; {_PLAIN}"
    if math.prod(dataset.chunks) * dataset.dtype.itemsize > MAX_ARRAY_BYTES:
        return f"has chunks of more than {MAX_ARRAY_BYTES:,} bytes; store it in smaller ones"
    if math.prod(_grid(dataset)) > MAX_CHUNKS:
        return f"has more than {MAX_CHUNKS:,} chunks; store it in larger ones"
    return None


def _filters(layout: h5py.h5p.PropDCID) -> list[int]:
    return [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]


def _grid(dataset: h5py.Dataset) -> list[int]:
    """Return how many chunks there are along each dimension."""
    return [-(-length // step) for length, step in zip(dataset.shape, dataset.chunks, strict=True)]


def _chunks_are_lacking(dataset: h5py.Dataset, nbytes: int) -> bool:
    """Return whether a chunk, of ``nbytes`` in memory, is not stored or not whole.

    HDF5 makes up zeros for a chunk that is missing, and reads on beyond the end of one that is too short.
    """
    filters = _filters(dataset.id.get_create_plist())
    buffer = bytearray(nbytes + nbytes // 16 + 64)  # the largest possible compressed size
    for place in np.ndindex(*_grid(dataset)):
        corner = tuple(at * step for at, step in zip(place, dataset.chunks, strict=True))
        try:
            skipped, stored = dataset.id.read_direct_chunk(corner, out=buffer)
        except (OSError, RuntimeError, ValueError):
            return True
        if not _is_whole(stored, [code for i, code in enumerate(filters) if not skipped >> i & 1], nbytes):
            return True
    return False


def _is_whole(stored: memoryview, filters: list[int], nbytes: int) -> bool:
    """Return whether the stored bytes unpack to ``nbytes``. filters: those that made them, in this order."""
    at = next((i for i, code in enumerate(filters) if code in _COMPRESSIONS), len(filters))
    checksum = h5py.h5z.FILTER_FLETCHER32
    inner = nbytes + _CHECKSUM_BYTES * filters[:at].count(checksum)
    end = len(stored) - _CHECKSUM_BYTES * filters[at:].count(checksum)
    if at == len(filters):
        return end == inner
    if filters[at] == h5py.h5z.FILTER_LZF:
        return True  # LZF has no checksum, and to decode it here would take ten times as long as reading
    try:
        inflater = zlib.decompressobj()
        size = len(inflater.decompress(stored[:end], inner + 1))
        return inflater.eof and size == inner
    except zlib.error:
        return False


def _is_plain_number(kind: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether the file's type, ``dtype`` in NumPy, is an integer or a float of up to 8 bytes without padding."""
    return kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and dtype.itemsize == kind.get_size() <= 8


@contextmanager
def open_strict(path: Path, source: bytes | mmap.mmap | int) -> Iterator[StrictFile]:
    """Open an HDF5 file; errors call it ``path``. source: its content, or the descriptor of an open file.

    Raises UserError for every fault of the file, here and in the methods of the object that it yields.
    """
    with _user_errors(path):
        size = os.fstat(source).st_size if isinstance(source, int) else len(source)
        file = h5py.File(f"/proc/self/fd/{source}", "r") if isinstance(source, int) else _open_image(source)
    try:
        yield StrictFile(path, file, size)
    finally:
        with _user_errors(path):
            file.close()


def _open_image(image: bytes | mmap.mmap) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(backing_store=False)
    access.set_file_image(image)
    name = uuid.uuid4().hex.encode()  # HDF5 treats two images of one name as the same file
    return h5py.File(h5py.h5f.open(name, h5py.h5f.ACC_RDONLY, access))


@contextmanager
def _user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _H5PY_ERRORS as error:
        reason = printable(" ".join(str(error).split())) or type(error).__name__
        if _NO_MEMORY.search(reason):
            raise MemoryError(reason) from error
        raise UserError(f"{path} is not a readable HDF5 file: {reason}; get a fresh copy or make it again") from error


def contents(file: StrictFile, wanted: Wanted, allocate: Allocate = _ordinary) -> Contents:
    """Read the wanted parts of the file. ``allocate`` provides the memory of the arrays, one after the other.

    Raises UserError, and MemoryError if memory runs out.
    """
    names = file.names()
    attributes = {name: file.attribute(name) for name in wanted.attributes}
    arrays: dict[str, np.ndarray] = {}
    left = wanted.max_bytes  # for all together: different datasets may share their storage
    for name in names if wanted.arrays is None else wanted.arrays:
        if name in names:
            arrays[name] = file.array(name, left, allocate)
            left -= arrays[name].nbytes
    return Contents(names, arrays, {name: value for name, value in attributes.items() if value is not None})
