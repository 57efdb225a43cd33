"""Read arrays of images: IDX, HDF5, NPY and NPZ files, told from pictures by their first bytes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, shown
from app.files.formats import START_BYTES, recognise
from app.files.hdf5 import ReadHdf5
from app.files.hdf5_process import read_untrusted
from app.files.reading import first_bytes, read_file
from app.interchange.npz import Header, read_array, read_arrays
from data_tools.dataset import Dataset, bytes_or_floats, channel_dimension, channels_first, check_type, load_files
from data_tools.idx import MAX_BYTES, MAX_FILE_BYTES, OLD_MAGIC, TOO_LARGE

NAMES = ("x", "images")  # of the array of images in an NPZ file; a single array may have any name


def reader(path: Path, read_hdf5: ReadHdf5 = read_untrusted) -> Callable[[Path], Dataset] | None:
    """Return the function that reads this kind of file; None for a picture, and for what cannot be read at all.

    read_hdf5: how to read HDF5 files.
    """

    def read_idx_or_hdf5(path: Path) -> Dataset:
        return load_files(path, None, unlabelled=True, read_hdf5=read_hdf5)

    try:
        start = first_bytes(path, START_BYTES)
    except (UserError, OSError):
        return None
    kind = "an IDX file" if start.startswith(OLD_MAGIC) else recognise(start)
    return read_idx_or_hdf5 if kind in IDX_OR_HDF5 else READERS.get(kind or "")


def _read_npy(path: Path) -> Dataset:
    content = read_file(path, MAX_FILE_BYTES, TOO_LARGE)
    try:
        return _dataset(read_array("its content", content), path, str(path))
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error


def _read_npz(path: Path) -> Dataset:
    def images(found: Mapping[str, Header]) -> list[str]:
        name = next((name for name in (*NAMES, *found) if name in found), None)
        if name is None or (name not in NAMES and len(found) > 1):
            known = ", ".join(map(shown, found)) or "nothing"
            raise UserError(f"{path} contains {known}; store the images as {' or '.join(NAMES)}, or as its only array")
        _check_form(found[name].shape, found[name].dtype, f"{shown(name)} in {path}")
        return [name]

    try:
        arrays = read_arrays(read_file(path, MAX_FILE_BYTES, TOO_LARGE), MAX_BYTES, images)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    ((name, array),) = arrays.items()
    return _dataset(array, path, f"{shown(name)} in {path}")


def _check_form(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    """Raise UserError, which calls the array ``name``, if images cannot have this shape or type."""
    check_type(dtype, name)
    if len(shape) not in (2, 3, 4) or 0 in shape:
        wanted = "(H, W), (N, H, W) or, with 1 or 3 channels C, (N, C, H, W) or (N, H, W, C)"
        raise UserError(f"{name} has shape {shape}; it must be {wanted} and at least one image")
    if len(shape) == 4:
        channel_dimension(shape, name)


def _dataset(array: np.ndarray, path: Path, name: str) -> Dataset:
    """Make (N, C, H, W) of one image (H, W), of (N, H, W), or of images with 1 or 3 channels. Raises UserError."""
    _check_form(array.shape, array.dtype, name)
    images = channels_first(array, name) if array.ndim == 4 else array.reshape(-1, 1, *array.shape[-2:])
    return Dataset(bytes_or_floats(images, name), None, None, str(path), None)


# What ``recognise`` calls the content → its reader.
IDX_OR_HDF5 = ("an IDX file", "a gzip file", "an HDF5 file")
READERS: dict[str, Callable[[Path], Dataset]] = {
    "a NumPy array (.npy)": _read_npy,
    "a NumPy archive (.npz)": _read_npz,
}
