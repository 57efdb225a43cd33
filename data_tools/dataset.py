"""Load images and their labels, from Fashion-MNIST or from the user's IDX or HDF5 files, and check them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.hdf5 import ReadHdf5, ReadRequest, printable_line
from app.files.reading import is_hdf5
from app.network.network import CHANNELS
from data_tools.fashion_mnist import CLASSES, SPLITS, open_split, recognise_split
from data_tools.idx import MAX_BYTES, TOO_LARGE, Allocate, allocate_pageable, read_idx

CHUNK = 1000  # images converted at a time, so that temporary arrays are small
MAX_LISTED = 10  # names that an error lists
INTEGER_TOLERANCE = 255 * 4 * float(np.finfo(np.float32).eps)
"""Largest distance of x·255 from an integer if x is k/255, or k·(1/255), rounded to float32."""


class Dataset(Frozen):
    """Images (N, C, H, W), C-contiguous, uint8 or float32 in [0, 1], and labels (N,) uint8 or None.

    classes: names of the classes, only for Fashion-MNIST. source: origin of the images, for the report. split: "test"
    or "train" if the images and labels equal that split of Fashion-MNIST exactly; otherwise None.
    """

    images: np.ndarray
    labels: np.ndarray | None
    classes: tuple[str, ...] | None
    source: str
    split: str | None


def load_fashion_mnist(split: str, data_dir: Path | None = None, allocate: Allocate | None = None) -> Dataset:
    """Return the verified "test" or "train" split, downloaded if necessary; see ``open_split``. Raises UserError."""
    images, labels, directory = open_split(split, data_dir, allocate)
    return Dataset(images[:, None], labels, CLASSES, f"Fashion-MNIST {split} split, {directory}", split)


def placeholder_fashion_mnist(split: str) -> Dataset:
    """Return a ``Dataset`` of Fashion-MNIST's shape whose pixels are all 0, to check options before a download."""
    shape = SPLITS[split][0].shape
    images = np.broadcast_to(np.uint8(0), (shape[0], 1, *shape[1:]))
    labels = np.broadcast_to(np.uint8(len(CLASSES) - 1), shape[:1])
    return Dataset(images, labels, CLASSES, f"Fashion-MNIST {split} split", split)


def load_files(
    data: Path,
    labels: Path | None,
    allocate: Allocate | None = None,
    *,
    unlabelled: bool = False,
    read_hdf5: ReadHdf5 | None = None,
) -> Dataset:
    """Return the user's images from an IDX file (gzipped or raw) or an HDF5 file; its content decides which.

    IDX: (N, H, W), or with channels as in HDF5. HDF5: ``x`` (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, float32
    or float64 in [0, 1] or uint8, and optionally ``y``, (N, classes) one-hot or integers, (N,) or (N, 1). Floats that
    are all k/255 become uint8. labels: an IDX file, used instead of ``y``. unlabelled: do not read ``y``. allocate:
    returns memory for the images. read_hdf5: reads HDF5 files; None: another process reads each. Raises UserError for
    files that cannot be read or do not fit together.
    """
    given = None if labels is None else read_idx(labels, 1)
    split = None
    if is_hdf5(data):
        images, own = _read_hdf5_arrays(
            data, allocate or allocate_pageable, labels is None and not unlabelled, read_hdf5
        )
        truth = own if given is None else given
    else:
        images, truth = read_images(data, allocate or allocate_pageable), given
        split = recognise_split(images[:, 0], truth) if images.shape[1] == 1 else None
    if truth is not None and len(truth) != len(images):
        where = f"{labels or data} has {len(truth)} labels"
        raise UserError(f"{where} but {data} has {len(images)} images; name files that belong together")
    return Dataset(images, truth, CLASSES if split else None, str(data), split)


def _read_hdf5_arrays(
    path: Path, allocate: Allocate, with_labels: bool, read_hdf5: ReadHdf5 | None
) -> tuple[np.ndarray, np.ndarray | None]:
    if read_hdf5 is None:
        from app.files.hdf5_process import read_untrusted

        read_hdf5 = read_untrusted
    found = read_hdf5(path, None, ReadRequest(("x", "y") if with_labels else ("x",), (), MAX_BYTES, TOO_LARGE))
    if "x" not in found.arrays:
        raise no_images_error(path, found.names)
    y, name = found.arrays.get("y"), f"x in {path}"
    x = to_channels_first(found.arrays["x"], name)
    check_dtype(x.dtype, name)
    return copy_pixels_or_floats(x, name, allocate), None if y is None else convert_labels(y, f"y in {path}")


def no_images_error(path: Path, names: Sequence[str]) -> UserError:
    """Return the error for an HDF5 file without a dataset ``x``. names: names in the root of the file."""
    listed = ", ".join(printable_line(name, 40) for name in names[:MAX_LISTED]) or "nothing"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return UserError(f"{path} contains {listed}{more}, but no dataset x; store the images as x, shape (N, H, W, C)")


def check_dtype(dtype: np.dtype, source: str) -> None:
    """Raise UserError unless ``dtype`` is uint8, float32 or float64. source: what the error calls the array."""
    if dtype != np.uint8 and not (dtype.kind == "f" and dtype.itemsize in (4, 8)):
        raise UserError(f"{source} is {dtype}; store it as uint8, or as float32 or float64 in [0, 1]")


def copy_pixels_or_floats(x: np.ndarray, source: str, allocate: Allocate = allocate_pageable) -> np.ndarray:
    """Return a copy: bytes as they are, floats that are all k/255 as bytes, other floats in [0, 1] as float32.

    source: what errors call the array. Raises UserError for floats that are not finite or not in [0, 1].
    """
    integers = x.dtype == np.uint8 or _are_pixels(x, source)
    dtype = np.dtype(np.uint8 if integers else np.float32)
    images = allocate(x.size * dtype.itemsize).view(dtype).reshape(x.shape)
    for start in range(0, len(x), CHUNK):
        rows = x[start : start + CHUNK]
        if integers and x.dtype != np.uint8:
            rows = np.rint(rows * 255)
        images[start : start + CHUNK] = rows
    return images


def _are_pixels(x: np.ndarray, source: str) -> bool:
    """Return whether all floats are k/255 with integers k. Raise UserError unless all are finite and in [0, 1]."""
    integers = True
    for start in range(0, len(x), CHUNK):
        rows = x[start : start + CHUNK]
        check_fraction_range(rows, source)
        scaled = rows * 255
        integers = integers and bool((np.abs(scaled - np.rint(scaled)) <= INTEGER_TOLERANCE).all())
    return integers


def check_fraction_range(x: np.ndarray, source: str) -> None:
    """Raise UserError for floats that are not finite or not in [0, 1]. source: what the error calls the array."""
    low, high = x.min(), x.max()
    if not (low >= 0 and high <= 1):  # also true if min and max are NaN
        limits = " … ".join(str(one).removesuffix(".0") for one in (low, high))  # 1.0000001 must not read as 1
        found = f"in {limits}" if np.isfinite([low, high]).all() else "that are not finite"
        raise UserError(f"{source} contains values {found}; scale them to [0, 1], or store pixels as uint8")


def convert_labels(y: np.ndarray, source: str) -> np.ndarray:
    """Return labels as (N,) uint8, given (N, classes) one-hot, or integers (N,) or (N, 1).

    Raises UserError, which calls the array ``source``, for any other array.
    """
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "iu":
        y = y[:, 0]
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "fiub":
        if not (((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all()):
            raise UserError(f"{source} is not one-hot: each row must contain one 1 and otherwise 0")
        y = y.argmax(axis=1)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(f"{source} is {y.dtype} {y.shape}; it must be (N, classes) one-hot or (N,) integers")
    if y.size and (y.min() < 0 or y.max() > 255):
        raise UserError(f"{source} contains labels from {y.min()} to {y.max()}; they must be within 0 … 255")
    return y.astype(np.uint8)


RANKS = (3, 4)  # possible numbers of dimensions in an IDX file of images


def to_channels_first(x: np.ndarray, name: str) -> np.ndarray:
    """Return a view (N, C, H, W) of images (N, H, W, C) or (N, C, H, W), with 1 or 3 channels.

    name: what the error calls the array. Raises UserError as ``channel_axis`` does.
    """
    return x if channel_axis(x.shape, name) == 1 else x.transpose(0, 3, 1, 2)


def channel_axis(shape: tuple[int, ...], name: str) -> int:
    """Return the axis of the channels in images of this shape, 1 or 3: the one whose length is 1 or 3.

    name: what the error calls the array. Raises UserError if neither axis has such a length, or both.
    """
    wanted = "(N, H, W, C) or (N, C, H, W) with 1 or 3 channels C"
    if len(shape) != 4 or 0 in shape:
        raise UserError(f"{name} has shape {shape}; it must be {wanted} and at least one image")
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first and last:
        either = "its second dimension or its last may be the channels"
        raise UserError(f"{name} has shape {shape}; {either}: store images whose height and width are not 1 or 3")
    if not (first or last):
        raise UserError(f"{name} has shape {shape}; it must be {wanted}")
    return 1 if first else 3


def read_images(path: Path, allocate: Allocate = allocate_pageable) -> np.ndarray:
    """Return the images of an IDX file, (N, H, W) or with channels as in ``to_channels_first``, as (N, C, H, W) uint8.

    The array is C-contiguous. allocate: returns memory for the images. Raises UserError.
    """
    stored = read_idx(path, RANKS, allocate=allocate)
    if stored.ndim == 3:
        return stored[:, None]
    images = to_channels_first(stored, str(path))
    if images.flags.c_contiguous:
        return images
    planes = allocate(images.size).reshape(images.shape)
    planes[...] = images
    return planes
