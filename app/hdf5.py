"""HDF5: a strict reader for files that may be broken or hostile, and a writer with reproducible bytes.

HDF5 is not built for malicious files: links and datasets may point into other files (even those of a file
opened from memory), two kilobytes can declare petabytes, and filters inflate. So every dataset is judged by
its declaration alone, before a byte of it is read.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from app.errors import UserError
from app.files import open_regular

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_FILE_BYTES = 4 << 30
MAX_ARRAY_BYTES = 1 << 30
MAX_ATTRIBUTE_BYTES = 64 << 10

# Filters that are let through, with the most bytes that each can make of one stored byte.
_EXPANSION = {
    h5py.h5z.FILTER_SHUFFLE: 1,
    h5py.h5z.FILTER_FLETCHER32: 1,
    h5py.h5z.FILTER_LZF: 88,  # three bytes stand for 264 at most
    h5py.h5z.FILTER_DEFLATE: 1032,  # two bits stand for 258 bytes at most
}
# What h5py raises for broken files, from every layer of it.
_H5PY_ERRORS = (OSError, LookupError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)


class StrictFile:
    """An HDF5 file open for reading; only numeric datasets and small attributes of its root are given out."""

    def __init__(self, path: Path, file: h5py.File, size: int) -> None:
        self._path = path
        self._file = file
        self._id = file.id  # the low-level calls used here never follow a link
        self._size = size

    def names(self) -> frozenset[str]:
        """Names of everything in the root that is not a group; what cannot be read is refused by ``array``."""
        with _user_errors(self._path):
            return frozenset(name.decode() for name in self._id if not self._is_group(name))

    def array(self, name: str, max_bytes: int = MAX_ARRAY_BYTES) -> np.ndarray:
        """The root dataset ``name``: integers or floats of up to 8 bytes, native byte order, C-contiguous.

        Raises UserError if it is missing, unreadable, larger than ``max_bytes``, or anything but plain
        numbers stored in this very file.
        """
        with _user_errors(self._path):
            reason = self._reason_against_link(name.encode())
            if not reason:
                dataset = h5py.Dataset(h5py.h5d.open(self._id, name.encode()))
                reason = self._reason_against(dataset, max_bytes)
            if reason:
                raise UserError(f"{self._path}: dataset {name!r} {reason}; store it as plain numbers in this file")
            array = np.empty(dataset.shape, dataset.dtype.newbyteorder("="))
            if array.size:
                dataset.read_direct(array)
            return array

    def attribute(self, name: str) -> str | int | float | np.ndarray | None:
        """The root attribute ``name``: one fixed-length string, a number or an array of them; None if there is none.

        Raises UserError if it is unreadable, larger than 64 KiB or of any other type.
        """
        with _user_errors(self._path):
            if not h5py.h5a.exists(self._id, name.encode()):
                return None
            attribute = h5py.h5a.open(self._id, name.encode())
            kind, shape = attribute.get_type(), attribute.shape
            is_text = isinstance(kind, h5py.h5t.TypeStringID) and shape == ()
            if is_text and kind.is_variable_str():  # HDF5 can loop for ever over the damaged heap that holds it
                raise UserError(
                    f"{self._path}: attribute {name!r} is variable-length text; write it as np.bytes_(text)"
                )
            if shape is None or not (is_text or _is_plain_number(kind)):
                raise UserError(f"{self._path}: attribute {name!r} is neither one string nor numbers; remove it")
            if math.prod(shape) * kind.get_size() > MAX_ATTRIBUTE_BYTES:
                raise UserError(f"{self._path}: attribute {name!r} is larger than 64 KiB; remove it")
            value = self._file.attrs[name]
            if is_text:
                return value.decode()
            return np.asarray(value, value.dtype.newbyteorder("=")) if shape else value.item()

    def _is_group(self, name: bytes) -> bool:
        """Looks through hard links only: the two other kinds could lead out of the file."""
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return False
        return h5py.h5o.get_info(self._id, name).type == h5py.h5o.TYPE_GROUP

    def _reason_against_link(self, name: bytes) -> str | None:
        if name not in set(self._id):  # a path through other groups could pass any kind of link
            return "is missing"
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return "is a soft or external link"
        if h5py.h5o.get_info(self._id, name).type != h5py.h5o.TYPE_DATASET:
            return "is a group or a type, not a dataset"
        return None

    def _reason_against(self, dataset: h5py.Dataset, max_bytes: int) -> str | None:
        """Why ``dataset`` must not be read, by what its header declares; None if it may."""
        layout = dataset.id.get_create_plist()
        kind = dataset.id.get_type()
        if layout.get_external_count() > 0:
            return "keeps its data in another file"
        if dataset.is_virtual:
            return "is virtual, a view of other files"
        if not _is_plain_number(kind) or dataset.dtype.itemsize != kind.get_size():
            return "holds something other than integers or floats of up to 8 bytes"
        if dataset.shape is None:
            return "is empty"
        nbytes = math.prod(dataset.shape) * kind.get_size()
        if nbytes > max_bytes:
            return f"declares {nbytes:,} bytes, more than the {max_bytes:,} allowed"
        stored = dataset.id.get_storage_size()
        if stored > self._size:
            return f"claims {stored:,} stored bytes in a file of {self._size:,}"
        if layout.get_layout() == h5py.h5d.CHUNKED:
            return _reason_against_chunks(dataset, layout, nbytes, stored)
        return None if stored == nbytes else f"declares {nbytes:,} bytes but stores {stored:,}"


def _reason_against_chunks(dataset: h5py.Dataset, layout: h5py.h5p.PropDCID, nbytes: int, stored: int) -> str | None:
    filters = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
    if not set(filters) <= set(_EXPANSION) or len(set(filters)) < len(filters):
        return "uses filters other than gzip, lzf, shuffle and fletcher32, each once"
    expansion = math.prod(_EXPANSION[code] for code in filters)
    if nbytes > expansion * stored:
        return f"declares {nbytes:,} bytes but stores only {stored:,}"
    if math.prod(dataset.chunks) * dataset.dtype.itemsize > MAX_ARRAY_BYTES:
        return "has chunks that are too large"
    # A stored chunk is inflated as far as it goes, whatever size it was declared to have.
    too_large = dataset.id.chunk_iter(lambda chunk: chunk.size * expansion > MAX_ARRAY_BYTES or None)
    return "has compressed chunks that are too large" if too_large else None


def _is_plain_number(kind: h5py.h5t.TypeID) -> bool:
    return kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and kind.get_size() <= 8


@contextmanager
def open_strict(path: Path, image: bytes | None = None) -> Iterator[StrictFile]:
    """Open ``path`` for reading, or ``image``, the content of it that was read before.

    Raises UserError for everything that can be wrong with the file, here and in the methods of what it yields.
    """
    if image is None:
        with open_regular(path, MAX_FILE_BYTES) as stream, _user_errors(path):
            start, size = stream.read(len(SIGNATURE)), stream.seek(0, 2)
    else:
        start, size = image[: len(SIGNATURE)], len(image)
    if start != SIGNATURE:
        raise UserError(f"{path} is not an HDF5 file (its first bytes say so); name another file or make it again")
    with _user_errors(path):
        file = h5py.File(path, "r") if image is None else _open_image(image)
    try:
        yield StrictFile(path, file, size)
    finally:
        with _user_errors(path):
            file.close()


def _open_image(image: bytes) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(backing_store=False)
    access.set_file_image(image)
    name = uuid.uuid4().hex.encode()  # HDF5 takes two images of one name for the same file
    return h5py.File(h5py.h5f.open(name, h5py.h5f.ACC_RDONLY, access))


@contextmanager
def _user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _H5PY_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} is not a readable HDF5 file: {reason}; get a fresh copy or make it again") from error


def file_image(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, str | int | float]) -> bytes:
    """The bytes of an HDF5 file with these root datasets and attributes; equal input gives equal bytes.

    Raises MemoryError.
    """
    # The oldest format: every reader knows it, and no version of HDF5 writes it differently.
    options = {"driver": "core", "backing_store": False, "libver": "earliest"}
    try:
        with h5py.File(uuid.uuid4().hex, "w", **options) as file:
            for name, array in sorted(arrays.items()):
                file.create_dataset(name, data=array, dtype=array.dtype.newbyteorder("<"), track_times=False)
            for name, value in sorted(attributes.items()):
                file.attrs[name] = _fixed_length(value) if isinstance(value, str) else value
            file.flush()
            return file.id.get_file_image()
    except OSError as error:  # no file is written to: it grows in memory
        raise MemoryError(str(error)) from error


def _fixed_length(text: str) -> np.ndarray:
    encoded = text.encode()
    return np.array(encoded, h5py.string_dtype("utf-8", max(1, len(encoded))))
