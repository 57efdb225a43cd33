"""Open shards: read the headers of the files, never their content."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.errors import UserError
from app.files.checks import BadValueError
from app.files.formats import START_BYTES, recognise
from app.files.reading import open_regular
from app.interchange.npz import MAX_HEADER_BYTES, read_header
from app.shards.finding import labels_beside
from app.shards.shard import Shard
from app.shards.stored import Stored
from data_tools.colour import RANKS, channel_dimension
from data_tools.dataset import check_type
from data_tools.idx import read_layout


def open_shard(path: Path, labels: Path | None = None, *, unlabelled: bool = False) -> Shard:
    """Open one shard; see ``open_shards``."""
    return open_shards([path], None if labels is None else [labels], unlabelled=unlabelled)[0]


def open_shards(
    paths: Sequence[Path], labels: Sequence[Path] | None = None, *, unlabelled: bool = False
) -> list[Shard]:
    """Read the headers of files of images: IDX (plain or gzip), NPY or HDF5, recognised by content, of any size.

    Images are uint8, or float32 or float64 in [0, 1]: (N, H, W), or with 1 or 3 channels (N, C, H, W) or
    (N, H, W, C); ``x`` in HDF5.
    labels: a file for each of ``paths``, IDX or NPY. By default they are the IDX file beside the images that has the
    data set's name for it, or ``y`` in HDF5. unlabelled: look for none.
    Raises UserError for files that cannot be read, whose size is not that of their header, or that do not fit together.
    """
    if labels is not None and len(labels) != len(paths):
        raise UserError(f"--labels names {len(labels)} files for {len(paths)} shards: name one for each, in this order")
    shards = []
    for number, path in enumerate(paths):
        images = _images(path)
        named = labels[number] if labels is not None else None if unlabelled else labels_beside(path)
        truth = None if named is None else _labels(named)
        if truth is not None and truth.shape[0] != images.shape[0]:
            counts = f"{truth.path} has {truth.shape[0]} labels but {images.path} has {images.shape[0]} images"
            raise UserError(f"{counts}; name files that belong together")
        shards.append(Shard(images, truth))
    return shards


def _images(path: Path) -> Stored:
    stored = _stored(path, RANKS)
    check_type(stored.dtype, stored.name)
    if len(stored.shape) not in RANKS:
        wanted = "(N, H, W) or, with 1 or 3 channels C, (N, C, H, W) or (N, H, W, C)"
        raise UserError(f"{stored.name} has shape {stored.shape}; it must be {wanted}")
    if len(stored.shape) == 4:
        channel_dimension(stored.shape, stored.name)
    return stored


def _labels(path: Path) -> Stored:
    stored = _stored(path, (1,))
    if len(stored.shape) != 1 or stored.dtype.kind not in "iu":
        raise UserError(f"{stored.name} is {stored.dtype} {stored.shape}; labels must be (N,) integers")
    return stored


def _stored(path: Path, ranks: tuple[int, ...]) -> Stored:
    with open_regular(path) as stream:
        start = stream.read(MAX_HEADER_BYTES)
        status = os.fstat(stream.fileno())
    path = path.absolute()
    if recognise(start[:START_BYTES]) == "a NumPy array (.npy)":
        return _npy(path, start, status)
    layout = read_layout(path, ranks)
    return Stored(
        path=path,
        name=str(path),
        shape=layout.shape,
        dtype=np.dtype(np.uint8),
        form="gzip" if layout.zipped else "plain",
        size=layout.size,
        mtime_ns=status.st_mtime_ns,
        offset=layout.offset,
    )


def _npy(path: Path, start: bytes, status: os.stat_result) -> Stored:
    try:
        shape, in_columns, dtype, offset = read_header(f"{path}:", start)
    except BadValueError as error:
        raise UserError(str(error)) from error
    if in_columns and len(shape) > 1:
        raise UserError(f"{path} is stored by columns; save it again with numpy.ascontiguousarray")
    stored = Stored(
        path=path,
        name=str(path),
        shape=shape,
        dtype=dtype,
        form="plain",
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        offset=offset,
    )
    if stored.nbytes != status.st_size - offset:
        found = f"{status.st_size - offset:,} bytes of numbers where its shape {shape} needs {stored.nbytes:,}"
        raise UserError(f"{path} has {found}; get a fresh copy")
    return stored
