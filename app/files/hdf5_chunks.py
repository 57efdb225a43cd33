"""Check the chunks of HDF5 datasets: the program must know their filters, and every chunk must be complete."""

import itertools
import math
import zlib

import h5py

from app.files.hdf5 import MAX_ARRAY_BYTES, PLAIN

MAX_CHUNKS = 1 << 20

_COMPRESSIONS = {h5py.h5z.FILTER_LZF, h5py.h5z.FILTER_DEFLATE}
_FILTERS = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32} | _COMPRESSIONS
_CHECKSUM_BYTES = 4


def why_chunks_unreadable(dataset: h5py.Dataset, layout: h5py.h5p.PropDCID) -> str | None:
    """Return why a dataset must not be read, and the remedy; None if its filters and the size of chunks permit it."""
    filters = _filter_codes(layout)
    if not set(filters) <= _FILTERS or len(set(filters)) < len(filters) or set(filters) >= _COMPRESSIONS:
        return f"uses filters other than gzip or lzf, shuffle and fletcher32, each once; {PLAIN}"
    if math.prod(dataset.chunks) * dataset.dtype.itemsize > MAX_ARRAY_BYTES:
        return f"has chunks of more than {MAX_ARRAY_BYTES:,} bytes; store it in smaller ones"
    if math.prod(_chunk_grid_shape(dataset)) > MAX_CHUNKS:
        return f"has more than {MAX_CHUNKS:,} chunks; store it in larger ones"
    return None


def _filter_codes(layout: h5py.h5p.PropDCID) -> list[int]:
    """Return the codes of the dataset's filters, in the order in which they were applied."""
    return [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]


def _chunk_grid_shape(dataset: h5py.Dataset) -> list[int]:
    """Return the number of chunks along each dimension."""
    return [-(-length // step) for length, step in zip(dataset.shape, dataset.chunks, strict=True)]


def has_incomplete_chunk(dataset: h5py.Dataset, nbytes: int, first: int, count: int) -> bool:
    """Return whether a chunk with some of the ``count`` rows from ``first`` on is missing or incomplete.

    HDF5 would return zeros for a missing chunk, and read beyond the end of a short one. nbytes: of a chunk in memory.
    """
    filters = _filter_codes(dataset.id.get_create_plist())
    buffer = bytearray(nbytes + nbytes // 16 + 64)  # the largest possible compressed size
    step = dataset.chunks[0]
    bands = range(first // step, -(-(first + count) // step))
    for chunk in itertools.product(bands, *map(range, _chunk_grid_shape(dataset)[1:])):
        corner = tuple(at * step for at, step in zip(chunk, dataset.chunks, strict=True))
        try:
            skipped, stored = dataset.id.read_direct_chunk(corner, out=buffer)
        except (OSError, RuntimeError, ValueError):
            return True
        if not _is_complete_chunk(stored, [code for i, code in enumerate(filters) if not skipped >> i & 1], nbytes):
            return True
    return False


def _is_complete_chunk(stored: memoryview, filters: list[int], nbytes: int) -> bool:
    """Return whether the stored bytes decompress to ``nbytes``. filters: codes, in the order of application."""
    at = next((i for i, code in enumerate(filters) if code in _COMPRESSIONS), len(filters))
    checksum = h5py.h5z.FILTER_FLETCHER32
    inner = nbytes + _CHECKSUM_BYTES * filters[:at].count(checksum)
    end = len(stored) - _CHECKSUM_BYTES * filters[at:].count(checksum)
    if at == len(filters):
        return end == inner
    if filters[at] == h5py.h5z.FILTER_LZF:
        return True  # LZF has no checksum, and decoding it here would take ten times as long as reading
    try:
        inflater = zlib.decompressobj()
        size = len(inflater.decompress(stored[:end], inner + 1))
        return inflater.eof and size == inner
    except zlib.error:
        return False
