"""Read HDF5 files strictly: check the header and the chunks of every dataset before reading it.

An HDF5 file can harm its reader: links and datasets may refer to other files, even if the file was opened from memory;
two kilobytes can declare petabytes; compressed data may expand without limit; missing data reads as zeros.
"""

import math
import mmap
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from app.base.errors import UserError
from app.files.hdf5 import (
    MAX_ARRAY_BYTES,
    MAX_ATTRIBUTE_BYTES,
    PLAIN,
    Attribute,
    FileContents,
    ReadRequest,
    StoredDataset,
    printable_line,
)

MAX_NAMES = 1000
MAX_PATHS, MAX_DEPTH = 10_000, 20  # limits below a group
MAX_NAME_BYTES = 255

# The errors that h5py's layers raise for broken files.
_H5PY_ERRORS = (OSError, LookupError, RuntimeError, ValueError, TypeError, OverflowError)
_NO_MEMORY = re.compile(
    "memory allocation failed|(unable to|can't) allocate|no space available for allocation", re.IGNORECASE
)

Allocate = Callable[[tuple[int, ...], np.dtype, int], np.ndarray]
"""Returns an array of this shape and type. The third argument is the size of a chunk in bytes, 0 without chunks."""


def _allocate_array(shape: tuple[int, ...], kind: np.dtype, _: int) -> np.ndarray:
    """Return a new array in ordinary memory. The third argument, a chunk's size in bytes, is not needed here."""
    return np.empty(shape, kind)


class StrictFile:
    """An HDF5 file open for reading, limited to numeric datasets and small attributes."""

    def __init__(self, path: Path, file: h5py.File, size: int) -> None:
        self._path = path
        self._file = file
        self._id = file.id  # the low-level calls used here never follow a link
        self._size = size
        self._read: dict[tuple[int, int], str] = {}  # position of a dataset in the file → its name
        self._paths: set[bytes] = set()  # of datasets in groups, reached through hard links only

    def list_names(self) -> tuple[str, ...]:
        """Return the names of everything in the root except groups; ``read_array`` refuses names that cannot be read.

        Raises UserError if there are more than MAX_NAMES, groups included, or if a name is longer than MAX_NAME_BYTES.
        """
        with _report_faults_as_user_errors(self._path):
            found = self._link_names(self._id)
            return tuple(sorted(name.decode() for name in found if not self._is_group(name)))

    def list_paths(self, group: str) -> tuple[str, ...]:
        """Return the paths of everything below a group of the root except groups; () if there is no such group.

        It follows only hard links. Raises UserError as ``list_names`` does for each group, and above MAX_PATHS.
        """
        with _report_faults_as_user_errors(self._path):
            name = group.encode()
            groups = [name] if self._id.links.exists(name) and self._is_group(name) else []
            for parent in groups:  # the loop appends to it
                for link in self._link_names(h5py.h5g.open(self._id, parent)):
                    path = parent + b"/" + link
                    if self._is_group(path):
                        groups.append(path)
                    else:
                        self._paths.add(path)
                # A group that contains itself has no end of paths.
                if len(groups) + len(self._paths) > MAX_PATHS or parent.count(b"/") > MAX_DEPTH:
                    raise UserError(f"{self._path} has too many or too deep groups in {group}; store less in it")
            return tuple(sorted(path.decode() for path in self._paths))

    def _link_names(self, group: h5py.h5g.GroupID) -> list[bytes]:
        found: list[bytes] = []

        def collect_name(name: bytes) -> bool | None:
            found.append(name)
            return len(found) > MAX_NAMES or len(name) > MAX_NAME_BYTES or None

        group.links.iterate(collect_name)  # stops when ``collect_name`` returns True
        if len(found) > MAX_NAMES or len(max(found, key=len, default=b"")) > MAX_NAME_BYTES:
            much = f"more than {MAX_NAMES:,} names" if len(found) > MAX_NAMES else "a name that is too long"
            raise UserError(f"{self._path} has {much} in one group; copy the needed arrays to a new file")
        return found

    def read_array(
        self,
        name: str,
        max_bytes: int = MAX_ARRAY_BYTES,
        allocate: Allocate = _allocate_array,
        too_large: str = ReadRequest.too_large,
    ) -> np.ndarray:
        """Return the root's dataset ``name``: integers or floats of up to 8 bytes, native byte order, C-contiguous.

        too_large: remedy for a dataset of more than ``max_bytes``. Raises UserError for such a dataset, and if it is
        missing, unreadable, already read by another name, or anything but plain numbers that this file stores entirely.
        """
        with _report_faults_as_user_errors(self._path):
            dataset = self._open_dataset(name, max_bytes, too_large)
            return self._read_rows(name, dataset, 0, len(dataset) if dataset.shape else 1, allocate)

    def read_rows(self, name: str, first: int, count: int, allocate: Allocate = _allocate_array) -> np.ndarray:
        """Return ``count`` rows, from row ``first`` on, of the dataset ``name`` of the root, as ``read_array`` does.

        Raises UserError as ``read_array`` does, and if the dataset does not have these rows.
        """
        with _report_faults_as_user_errors(self._path):
            dataset = self._open_dataset(name, sys.maxsize)
            if not dataset.shape or first + count > len(dataset):
                raise UserError(f"{self._path}: dataset {printable_line(repr(name))} is shorter than it was; run again")
            return self._read_rows(name, dataset, first, count, allocate)

    def describe_dataset(self, name: str) -> StoredDataset:
        """Return how the file stores the root's dataset ``name``, of any size. Raises UserError if unreadable."""
        with _report_faults_as_user_errors(self._path):
            dataset = self._open_dataset(name, sys.maxsize)
            if dataset.chunks:
                return StoredDataset(dataset.shape, dataset.dtype.newbyteorder("="), None, dataset.chunks[0])
            offset = dataset.id.get_offset()  # None for a small dataset that is stored in its header
            if offset is None or dataset.id.get_type() != h5py.h5t.py_create(dataset.dtype):
                return StoredDataset(dataset.shape, dataset.dtype.newbyteorder("="), None, 1)
            return StoredDataset(dataset.shape, dataset.dtype, offset, 1)

    def _open_dataset(self, name: str, max_bytes: int, too_large: str = ReadRequest.too_large) -> h5py.Dataset:
        reason = self._why_link_refused(name.encode())
        if not reason:
            dataset = h5py.Dataset(h5py.h5d.open(self._id, name.encode()))
            reason = self._why_dataset_refused(dataset, max_bytes, too_large)
        if reason:
            raise UserError(f"{self._path}: dataset {printable_line(repr(name))} {reason}")
        return dataset

    def _read_rows(self, name: str, dataset: h5py.Dataset, first: int, count: int, allocate: Allocate) -> np.ndarray:
        """Return ``count`` rows of a dataset, from ``first`` on; a scalar has one row. name: for errors."""
        chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
        shape = (count, *dataset.shape[1:]) if dataset.shape else ()
        array = allocate(shape, dataset.dtype.newbyteorder("="), chunk)
        if chunk:
            from app.files.hdf5_chunks import has_incomplete_chunk

            if has_incomplete_chunk(dataset, chunk, first, count):
                raise UserError(
                    f"{self._path}: dataset {printable_line(repr(name))} lacks some of its chunks, or parts of them, "
                    "which would be read as zeros; get a fresh copy or write it whole"
                )
        if array.size:
            dataset.read_direct(array, np.s_[first : first + count] if dataset.shape else None)
        return array

    def read_attribute(self, name: str) -> Attribute | None:
        """Return the attribute ``name`` of the root: a string, a number or a list of them; None if it does not exist.

        Raises UserError if it is unreadable, larger than 64 KiB or of another type. HDF5 can loop for ever over damaged
        text of variable length: for untrusted files use ``read_untrusted``, which has a time limit.
        """
        with _report_faults_as_user_errors(self._path):
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
            text = value.encode() if isinstance(value, str) else value  # h5py returns text of variable length as str
            if len(text) > MAX_ATTRIBUTE_BYTES:
                raise too_large
            return text.decode()

    def _is_group(self, name: bytes) -> bool:
        """Return whether the name is a hard link to a group. Only hard links cannot lead to another file."""
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return False
        return h5py.h5o.get_info(self._id, name).type == h5py.h5o.TYPE_GROUP

    def _why_link_refused(self, name: bytes) -> str | None:
        """Return why the link to a dataset must not be followed, and the remedy; None if it may be followed."""
        # A path through groups could contain any kind of link.
        unknown = b"/" in name and name not in self._paths
        if unknown or name == b"." or not self._id.links.exists(name):
            return "is missing; store it in the root of the file"
        if self._id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            return f"is a soft or external link; {PLAIN}"
        found = h5py.h5o.get_info(self._id, name)
        if found.type != h5py.h5o.TYPE_DATASET:
            return f"is a group or a type, not a dataset; {PLAIN}"
        first = self._read.setdefault((found.fileno, found.addr), name.decode())
        return None if first == name.decode() else f"is dataset {printable_line(repr(first))} by another name; {PLAIN}"

    def _why_dataset_refused(self, dataset: h5py.Dataset, max_bytes: int, too_large: str) -> str | None:
        """Return why ``dataset`` must not be read, and the remedy (for its size ``too_large``); None if it may."""
        layout = dataset.id.get_create_plist()
        kind = dataset.id.get_type()
        if layout.get_external_count() > 0:
            return f"keeps its data in another file; {PLAIN}"
        if dataset.is_virtual:
            return f"is virtual, a view of other files; {PLAIN}"
        if not _is_plain_number(kind, dataset.dtype):
            return f"contains something other than integers or floats of up to 8 bytes; {PLAIN}"
        if dataset.shape is None:
            return f"is empty; {PLAIN}"
        nbytes = math.prod(dataset.shape) * kind.get_size()
        if nbytes > max_bytes:
            return f"declares {nbytes:,} bytes, more than the {max_bytes:,} allowed; {too_large}"
        stored = dataset.id.get_storage_size()
        if stored > self._size:
            return f"claims {stored:,} stored bytes in a file of {self._size:,}; get a fresh copy"
        if layout.get_layout() == h5py.h5d.CHUNKED:
            from app.files.hdf5_chunks import why_chunks_unreadable

            return why_chunks_unreadable(dataset, layout)
        return None if stored == nbytes else f"declares {nbytes:,} bytes but stores {stored:,}; write it whole"


def _is_plain_number(kind: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether a type of the file is an integer or a float of up to 8 bytes without padding."""
    return kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and dtype.itemsize == kind.get_size() <= 8


@contextmanager
def open_strict(path: Path, source: bytes | mmap.mmap | int) -> Iterator[StrictFile]:
    """Open an HDF5 file, which errors call ``path``. source: content of the file, or the descriptor of an open file.

    Raises UserError for every fault of the file, here and in the methods of the object that it yields.
    """
    with _report_faults_as_user_errors(path):
        size = os.fstat(source).st_size if isinstance(source, int) else len(source)
        file = h5py.File(f"/proc/self/fd/{source}", "r") if isinstance(source, int) else _open_file_image(source)
    try:
        yield StrictFile(path, file, size)
    finally:
        with _report_faults_as_user_errors(path):
            file.close()


def _open_file_image(image: bytes | mmap.mmap) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(backing_store=False)
    access.set_file_image(image)
    name = uuid.uuid4().hex.encode()  # HDF5 treats two images of one name as the same file
    return h5py.File(h5py.h5f.open(name, h5py.h5f.ACC_RDONLY, access))


@contextmanager
def _report_faults_as_user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _H5PY_ERRORS as error:
        reason = printable_line(" ".join(str(error).split())) or type(error).__name__
        if _NO_MEMORY.search(reason):
            raise MemoryError(reason) from error
        raise UserError(f"{path} is not a readable HDF5 file: {reason}; get a fresh copy or make it again") from error


def read_contents(file: StrictFile, wanted: ReadRequest, allocate: Allocate = _allocate_array) -> FileContents:
    """Return the parts of the file that ``wanted`` names. allocate: returns memory for one array after another.

    Raises UserError, and MemoryError if memory runs out.
    """
    names = file.list_paths(wanted.group) if wanted.group else file.list_names()
    attributes = {name: file.read_attribute(name) for name in wanted.attributes}
    arrays: dict[str, np.ndarray] = {}
    left = wanted.max_bytes  # limit for all arrays together, because different datasets may share their storage
    for name in names if wanted.arrays is None else wanted.arrays:
        if name in names:
            arrays[name] = file.read_array(name, left, allocate, wanted.too_large)
            left -= arrays[name].nbytes
    return FileContents(names, arrays, {name: value for name, value in attributes.items() if value is not None})
