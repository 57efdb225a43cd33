"""Define requests to read HDF5 files and their results; write HDF5 files that are reproducible byte for byte."""

import hashlib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from app.base.errors import escape_unprintable
from app.base.frozen import Frozen

MAX_FILE_BYTES = 4 << 30
MAX_ATTRIBUTE_BYTES = 64 << 10
MAX_ARRAY_BYTES = 1 << 30
PLAIN = "store it as plain numbers in this file"

Attribute = str | int | float | list[int] | list[float]


class ReadRequest(Frozen):
    """Names of the attributes and datasets to read from the root of a file; those that are missing are left out.

    arrays: names of datasets; None for all. max_bytes: limit of the size of all datasets together. too_large: remedy in
    the error for larger ones. group: a group of the root; if given, its datasets at any depth are read, and their names
    are their paths from the root.
    """

    arrays: tuple[str, ...] | None
    attributes: tuple[str, ...]
    max_bytes: int
    too_large: str = "split the file or store less in it"
    group: str = ""


class FileContents(Frozen):
    """The data that was read from the root of a file, or from one of its groups.

    names: sorted names of everything there except groups. arrays: integers or floats of up to 8 bytes, native byte
    order, C-contiguous, writable.
    """

    names: tuple[str, ...]
    arrays: dict[str, np.ndarray]
    attributes: dict[str, Attribute]


class StoredDataset(Frozen):
    """How a file stores a dataset of its root.

    offset: position in bytes of its numbers, which are C-contiguous and in the byte order of ``dtype``; None if only
    HDF5 can read them, and then ``dtype`` has native byte order. band: rows of a chunk; 1 if it has no chunks.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None
    band: int


ReadHdf5 = Callable[[Path, bytes | None, ReadRequest], FileContents]
"""Reads a file as ``hdf5_process.read_untrusted`` does; its ``Reader.read`` does it for many files by one process."""


def printable_line(text: str, length: int = 200) -> str:
    """Return the text as one line of at most ``length`` characters, with unprintable ones escaped."""
    shown = escape_unprintable(text[:length])
    return shown if len(shown) <= length and len(text) <= length else f"{shown[: length - 1]}…"


def content_hash(arrays: Mapping[str, np.ndarray], head: str) -> str:
    """Return the SHA-256 of named arrays and a text; it does not depend on how a file stores the arrays.

    The hash covers the text ``head`` in UTF-8, then for each array, sorted by name, a line with name, type and shape,
    and the array's bytes in little-endian order.
    """
    digest = hashlib.sha256(head.encode())
    for name, array in sorted(arrays.items()):
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"\n{name} {plain.dtype.str} {array.shape}\n".encode())
        digest.update(plain.data if plain.size else b"")
    return digest.hexdigest()


def build_hdf5_bytes(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, str | int | float]) -> bytes:
    """Return an HDF5 file with these datasets and attributes; equal input gives equal bytes. Raises MemoryError."""
    import h5py

    # The oldest format: all readers support it, and all versions of HDF5 write the same bytes.
    options = {"driver": "core", "backing_store": False, "libver": "earliest"}
    try:
        with h5py.File(uuid.uuid4().hex, "w", **options) as file:
            for name, array in sorted(arrays.items()):
                file.create_dataset(name, data=array, dtype=array.dtype.newbyteorder("<"), track_times=False)
            for name, value in sorted(attributes.items()):
                text = value.encode() if isinstance(value, str) else b""
                kind = h5py.string_dtype("utf-8", max(1, len(text)))  # of fixed length
                file.attrs[name] = np.array(text, kind) if isinstance(value, str) else value
            file.flush()
            return file.id.get_file_image()
    except OSError as error:  # the file is in memory, so only memory can be missing
        raise MemoryError(str(error)) from error
