"""Find shard files and open them, reading only their headers."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from app.base.errors import UserError
from app.classify.shards.shard import Shard
from app.classify.shards.sources import StoredArray
from app.files import hdf5_process
from app.files.checks import BadValueError
from app.files.reading import START_BYTES, may_exist, open_regular, read_file, recognise_file_kind
from app.interchange.npz import MAX_HEADER_BYTES, read_header
from data_tools.dataset import RANKS, channel_axis, check_dtype, no_images_error
from data_tools.idx import read_layout

MAX_LIST_BYTES = 64 << 20
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"  # in Fashion-MNIST's file names


def find_shards(arguments: Iterable[str]) -> list[Path]:
    """Return the files that the arguments name, in order.

    An argument is a file, a pattern such as ``'day-*/part-?.npy'`` (its files in sorted order), or ``@LIST``: a text
    file with one path per line. Raises UserError for an argument that names no file, and for a file named twice.
    """
    found = [path for argument in arguments for path in _files_matching(argument)]
    seen: set[str] = set()
    for path in found:
        real = os.path.realpath(path)
        if real in seen:
            raise UserError(f"{path} is named twice: name each shard once")
        seen.add(real)
    return found


def _files_matching(argument: str) -> list[Path]:
    if not argument:  # Path("") is this folder
        raise UserError("an empty SHARD names nothing: name a file")
    if argument.startswith("@"):
        lines = os.fsdecode(read_file(Path(argument[1:]), MAX_LIST_BYTES)).split("\n")
        listed = [Path(line.strip()) for line in lines if line.strip()]
        if not listed:
            raise UserError(f"{argument[1:]} names no shard: write the path of one in each line")
        return listed
    if may_exist(Path(argument)) or not glob.has_magic(argument):
        return [Path(argument)]
    matching = glob.glob(argument, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    paths = [Path(path) for path in sorted(matching) if Path(path).is_file()]
    if not paths:
        raise UserError(f"{argument} matches no file; check the pattern")
    return paths


def find_labels_file_beside(path: Path) -> Path | None:
    """Return the labels file beside an IDX file of images, by Fashion-MNIST's names; None if there is none.

    The file may be gzipped: ``t10k-images-idx3-ubyte.gz`` has its labels in ``t10k-labels-idx1-ubyte.gz``.
    """
    if IMAGES not in path.name:
        return None
    name = path.name.replace(IMAGES, LABELS)
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    return next((path.with_name(each) for each in (name, other) if may_exist(path.with_name(each))), None)


MAX_BAND_BYTES = 256 << 20  # of all chunks with the same images, which are held in memory at once


def open_shard(
    path: Path, labels: Path | None = None, *, unlabelled: bool = False, hdf5: hdf5_process.Reader | None = None
) -> Shard:
    """Return a file of images as a shard: IDX (plain or gzip), NPY or HDF5 of any size, recognised by content.

    Images are uint8, or float32 or float64 in [0, 1]: (N, H, W), or with 1 or 3 channels (N, C, H, W) or (N, H, W, C).
    In HDF5 they are the dataset ``x``.

    labels: a file of their labels: IDX, NPY, or HDF5 with the dataset ``y``. By default, labels come from the IDX file
    beside the images that has Fashion-MNIST's name for it, or from ``y`` in the HDF5 file of the images. unlabelled:
    use no labels. hdf5: process that reads HDF5 files; by default a new one, which takes a second to start.

    This reads only headers. Raises UserError for a file that cannot be read, for a size that differs from the header's,
    and for labels that do not fit the images.
    """
    with nullcontext(hdf5) if hdf5 else hdf5_process.Reader() as reader:
        images, truth = _open_arrays(path, reader, with_labels=labels is None and not unlabelled)
        if labels is not None:
            truth = _open_labels(labels, reader)
    if truth is not None and truth.shape[0] != images.shape[0]:
        counts = f"{truth.path} has {truth.shape[0]} labels but {path} has {images.shape[0]} images"
        raise UserError(f"{counts}; name files that belong together")
    return Shard(images, truth)


def _open_arrays(path: Path, hdf5: hdf5_process.Reader, with_labels: bool) -> tuple[StoredArray, StoredArray | None]:
    """Return the array of images in a file, and that of their labels if it is in or beside the file and is wanted."""
    with open_regular(path) as stream:
        if _file_kind(stream) == "an HDF5 file":
            names, found = _read_hdf5_headers(path, stream, hdf5, ("x", "y") if with_labels else ("x",))
            if "x" not in found:
                raise no_images_error(path, names)
            return _validate_images(found["x"]), _validate_labels(found["y"]) if "y" in found else None
        images = _validate_images(_read_header(path, stream, RANKS))
    beside = find_labels_file_beside(path) if with_labels else None
    return images, None if beside is None else _open_labels(beside, hdf5)


def _open_labels(path: Path, hdf5: hdf5_process.Reader) -> StoredArray:
    with open_regular(path) as stream:
        if _file_kind(stream) != "an HDF5 file":
            return _validate_labels(_read_header(path, stream, (1,)))
        found = _read_hdf5_headers(path, stream, hdf5, ("y",))[1]
        if "y" not in found:
            raise UserError(f"{path} has no dataset y; store the labels as y, (N,) integers")
        return _validate_labels(found["y"])


def _validate_images(stored: StoredArray) -> StoredArray:
    check_dtype(stored.dtype, stored.name)
    if len(stored.shape) not in RANKS or 0 in stored.shape:
        wanted = "(N, H, W) or, with 1 or 3 channels C, (N, C, H, W) or (N, H, W, C), and at least one image"
        raise UserError(f"{stored.name} has shape {stored.shape}; it must be {wanted}")
    if len(stored.shape) == 4:
        channel_axis(stored.shape, stored.name)
    return stored


def _validate_labels(stored: StoredArray) -> StoredArray:
    if len(stored.shape) not in (1, 2) or 0 in stored.shape:
        wanted = "(N, classes) one-hot or (N,) integers"
        raise UserError(f"{stored.name} is {stored.dtype} {stored.shape}; it must be {wanted}")
    return stored


def _file_kind(stream: BinaryIO) -> str | None:
    return recognise_file_kind(os.pread(stream.fileno(), START_BYTES, 0))


def _read_header(path: Path, stream: BinaryIO, ranks: tuple[int, ...]) -> StoredArray:
    """Return the array that the header of an NPY or IDX file describes. ranks: accepted numbers of dimensions."""
    status = os.fstat(stream.fileno())
    if _file_kind(stream) != "a NumPy array (.npy)":
        layout = read_layout(path, ranks)
        return _make_stored_array(path, status, layout.shape, np.dtype(np.uint8), layout.offset, zipped=layout.zipped)
    try:
        header = read_header("it", os.pread(stream.fileno(), MAX_HEADER_BYTES, 0))
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    if header.order == "F" and len(header.shape) > 1:
        raise UserError(f"{path} is stored by columns; save it again with numpy.ascontiguousarray")
    stored = _make_stored_array(path, status, header.shape, header.dtype, header.offset)
    if not header.shape or stored.nbytes != status.st_size - header.offset:
        found = f"{status.st_size - header.offset:,} bytes of numbers, which is not what its shape {header.shape} needs"
        raise UserError(f"{path} has {found}; get a fresh copy")
    return stored


def _read_hdf5_headers(
    path: Path, stream: BinaryIO, hdf5: hdf5_process.Reader, wanted: tuple[str, ...]
) -> tuple[list[str], dict[str, StoredArray]]:
    """Return all names in the root of an HDF5 file, and name → array of the ``wanted`` datasets that exist."""
    status = os.fstat(stream.fileno())
    names, described = hdf5.describe_datasets(path, stream, wanted)
    found = {}
    for name, one in described.items():
        offset = one.offset or 0
        stored = _make_stored_array(
            path, status, one.shape, one.dtype, offset, dataset=name, band=one.band * (one.offset is None)
        )
        if stored.storage_form == "plain" and offset + stored.nbytes > status.st_size:
            raise UserError(f"{stored.name} ends beyond the end of the file; get a fresh copy")
        if stored.storage_form == "chunks" and stored.band * stored.row_bytes > MAX_BAND_BYTES:
            raise UserError(
                f"{stored.name} has chunks across {stored.band:,} rows, {stored.band * stored.row_bytes:,} bytes: "
                "store it in chunks of whole images, some thousands in each, or without chunks"
            )
        found[name] = stored
    return names, found


def _make_stored_array(
    path: Path, status: os.stat_result, shape: tuple[int, ...], dtype: np.dtype, offset: int, **layout: Any
) -> StoredArray:
    """Return a ``StoredArray``. status: gives the file's size and time of change. layout: further fields by name."""
    name = f"{layout['dataset']} in {path}" if "dataset" in layout else str(path)
    return StoredArray(path.absolute(), name, shape, dtype, status.st_size, status.st_mtime_ns, offset, **layout)
