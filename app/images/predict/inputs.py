"""Read the user's arrays and pictures in order, in parts that fit in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.processor import core_count
from app.files.checks import BadValueError, format_for_error
from app.files.hdf5 import ReadHdf5
from app.files.reading import START_BYTES, read_file, read_first_bytes, recognise_file_kind
from app.images.pictures.finding import find_pictures
from app.images.pictures.looks import MOST_SHOWN
from app.images.pictures.preparing import PreparedPicture, prepare_picture
from app.images.pictures.reading import MAX_PIXELS, UnreadablePicture, read_picture, require_pillow
from data_tools.dataset import Dataset, channel_axis, check_dtype, copy_pixels_or_floats, load_files, to_channels_first
from data_tools.idx import MAX_BYTES, MAX_FILE_BYTES, OLD_MAGIC, TOO_LARGE

if TYPE_CHECKING:
    from app.files.hdf5_process import Reader

NAMES = ("x", "images")  # names for images in an NPZ file; its only array may have any name


def read_array_file(path: Path, read_hdf5: ReadHdf5 | None = None) -> Dataset | None:
    """Return the images in a file of arrays; None if ``path`` is another file or cannot be read. Raises UserError."""
    try:
        start = read_first_bytes(path, START_BYTES)
    except (UserError, OSError):
        return None
    kind = "an IDX file" if start.startswith(OLD_MAGIC) else recognise_file_kind(start)
    if kind in IDX_OR_HDF5:
        return load_files(path, None, unlabelled=True, read_hdf5=read_hdf5)
    try:
        return READERS[kind](path) if kind in READERS else None
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error


def _read_npy(path: Path) -> Dataset:
    from app.interchange.npz import read_array  # imported only here and below: pictures need no other formats

    return _as_dataset(read_array("its content", read_file(path, MAX_FILE_BYTES, TOO_LARGE)), path, str(path))


def _read_npz(path: Path) -> Dataset:
    from app.interchange.npz import Header, read_arrays

    def select_image_array(found: Mapping[str, Header]) -> list[str]:
        name = next((name for name in (*NAMES, *found) if name in found), None)
        if name is None or (name not in NAMES and len(found) > 1):
            known = ", ".join(map(format_for_error, found)) or "nothing"
            raise UserError(f"{path} contains {known}; store the images as {' or '.join(NAMES)}, or as its only array")
        _check_shape_and_type(found[name].shape, found[name].dtype, f"{format_for_error(name)} in {path}")
        return [name]

    ((name, array),) = read_arrays(read_file(path, MAX_FILE_BYTES, TOO_LARGE), MAX_BYTES, select_image_array).items()
    return _as_dataset(array, path, f"{format_for_error(name)} in {path}")


def _check_shape_and_type(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    """Raise UserError if images cannot have this shape or type. name: what the error calls the array."""
    check_dtype(dtype, name)
    if len(shape) not in (2, 3, 4) or 0 in shape:
        wanted = "(H, W), (N, H, W) or, with 1 or 3 channels C, (N, C, H, W) or (N, H, W, C)"
        raise UserError(f"{name} has shape {shape}; it must be {wanted} and at least one image")
    if len(shape) == 4:
        channel_axis(shape, name)


def _as_dataset(array: np.ndarray, path: Path, name: str) -> Dataset:
    """Return images as (N, C, H, W). array: (H, W), (N, H, W), or with 1 or 3 channels. Raises UserError."""
    _check_shape_and_type(array.shape, array.dtype, name)
    images = to_channels_first(array, name) if array.ndim == 4 else array.reshape(-1, 1, *array.shape[-2:])
    return Dataset(copy_pixels_or_floats(images, name), None, None, str(path), None)


# What ``recognise_file_kind`` calls the content → its reader.
IDX_OR_HDF5 = ("an IDX file", "a gzip file", "an HDF5 file")
READERS: dict[str | None, Callable[[Path], Dataset]] = {
    "a NumPy array (.npy)": _read_npy,
    "a NumPy archive (.npz)": _read_npz,
}


LISTED = 10  # unreadable pictures whose fault is printed; the others are only counted

PictureShape = tuple[int, int, int]
"""Channels, height, width."""
Input = Dataset | list[Path]
"""The images of one file of arrays, or consecutive picture files."""
Columns = dict[str, list[str] | np.ndarray]
"""Column → its value for each image: path, number (int64), label (uint8), class, probability (float32) and so on."""
PictureOrFault = tuple[PreparedPicture, int] | UnreadablePicture
"""A prepared picture and the number of frames in its file, or the error that says why the file is unreadable."""


class Part(Frozen):
    """Some of the images to classify: (n, C, H, W) uint8, or float32 in [0, 1].

    paths, numbers: file of each image, and its index in the file. pictures: whether each image is a picture file.
    doubts: for each image, reasons for which its answer may be wrong.
    """

    paths: list[str]
    numbers: list[int]
    images: np.ndarray
    pictures: bool
    doubts: Sequence[tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        """Return a short name for each image: the picture's file name, or the index in its array."""
        return [Path(path).name for path in self.paths] if self.pictures else [str(number) for number in self.numbers]


@dataclass
class Tally:
    """Counts and faults of the images and pictures that a run has processed so far.

    inverted: pictures that were negated. animated: files of several frames. blank: pictures of one colour. faults: a
    line for each of the first unreadable pictures. images, brightness: number of classified images, and sum of their
    mean pixels. doubtful: pictures with a note. shown, names, answers: for --show, the first images, their names, and
    their probabilities and classes, with "?" if there is a note.
    """

    pictures: int = 0
    inverted: int = 0
    animated: int = 0
    blank: int = 0
    unreadable: int = 0
    faults: list[str] = field(default_factory=list)
    images: int = 0
    brightness: float = 0.0
    doubtful: int = 0
    shown: list[np.ndarray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def count_picture(self, found: PictureOrFault) -> PreparedPicture | None:
        """Count a picture; return it, or None if it is unreadable."""
        self.pictures += 1
        if isinstance(found, UnreadablePicture):
            self.unreadable += 1
            if len(self.faults) < LISTED:
                self.faults.append(str(found))
            return None
        prepared, frames = found
        self.inverted += prepared.inverted
        self.animated += frames > 1
        self.blank += bool(prepared.pixels.min() == prepared.pixels.max())
        return prepared

    def add_answers(self, part: Part, columns: Columns, show: bool) -> None:
        """Count the classified images of a part. show: keep the first 400 images of one size for ``--show``.

        columns: the answers for the images.
        """
        images = part.images
        scale = 1 if images.dtype == np.uint8 else 255
        self.images += len(images)
        self.brightness += float(images.mean(axis=(1, 2, 3), dtype=np.float64).sum()) * scale
        self.doubtful += sum(map(bool, columns.get("note", ())))
        left = MOST_SHOWN - len(self.shown)
        if show and (not self.shown or images.shape[1:] == self.shown[0].shape):
            self.shown.extend(np.rint(images[:left] * scale).astype(np.uint8))
            self.names += part.names[:left]
            names, notes = columns.get("class", columns["label"]), columns.get("note", cycle([""]))
            answers = zip(names, columns["probability"], notes, strict=False)
            self.answers += [f"{chance:.0%}{'?' * bool(note)} {name}" for name, chance, note in islice(answers, left)]


def gather_inputs(paths: Iterable[str]) -> list[Input]:
    """Return the images of the files of arrays among the paths, and the picture files, in order. Raises UserError."""
    inputs: list[Input] = []
    with ExitStack() as opened:

        @cache
        def hdf5_reader() -> "Reader":
            from app.files.hdf5_process import Reader

            return opened.enter_context(Reader())  # one process for all HDF5 files

        for path in paths:
            if not path:  # Path("") is this folder
                raise UserError("an empty PATH names nothing: give '.' for this folder")
            images = None if path == "-" else read_array_file(Path(path), lambda *asked: hdf5_reader().read(*asked))
            if images is not None:
                inputs.append(images)
                continue
            found = find_pictures([path])
            if inputs and isinstance(inputs[-1], list):
                inputs[-1] += found
            elif found:
                inputs.append(found)
    if any(isinstance(one, list) for one in inputs):
        require_pillow()
    return inputs


def image_count(source: Input) -> int:
    """Return the number of images of an input."""
    return len(source) if isinstance(source, list) else len(source.images)


def try_prepare_picture(path: Path, shape: PictureShape, invert: str) -> PictureOrFault:
    """Return the prepared picture and its file's number of frames, or the error. invert: "auto", "yes" or "no"."""
    try:
        picture = read_picture(path, MAX_PIXELS)
    except UnreadablePicture as error:
        return error
    return prepare_picture(picture, shape, invert), picture.info["frames"]


def split_inputs(
    inputs: Iterable[Input], shape: PictureShape, invert: str, most: int, seen: Tally, progress: Callable[[int], object]
) -> Iterator[Part]:
    """Yield the images in parts of ``most``; the last part of an input has the rest, too, so that no part is small.

    A part is empty if none of its pictures can be read. Threads prepare pictures for a network's input of ``shape`` in
    advance. invert: whether to negate them: "auto", "yes" or "no". seen: counts the pictures. progress: called with a
    number of images when they are read, or, for an array, when they are classified.
    """
    for one in inputs:
        if isinstance(one, list):
            yield from _split_pictures(
                one, partial(try_prepare_picture, shape=shape, invert=invert), most, seen, progress
            )
            continue
        # Fractions stay together: whether images are k/255, and so become bytes, is a property of the whole file.
        parts = max(1, len(one.images) // most) if one.images.dtype == np.uint8 else 1
        ends = [*range(most, parts * most, most), len(one.images)]
        for start, end in zip([0, *ends], ends, strict=False):
            numbers = [*range(start, end)]
            yield Part([one.source] * len(numbers), numbers, one.images[start:end], False, [()] * len(numbers))
            progress(len(numbers))


def _split_pictures(
    paths: Sequence[Path],
    prepare: Callable[[Path], PictureOrFault],
    most: int,
    seen: Tally,
    progress: Callable[[int], object],
) -> Iterator[Part]:
    pool = ThreadPoolExecutor(core_count())
    try:
        left = iter(paths)
        ahead: deque[tuple[Path, Future[PictureOrFault]]] = deque()
        while True:
            # While a part is classified, the next one is read.
            ahead.extend((path, pool.submit(prepare, path)) for path in islice(left, 2 * most - len(ahead)))
            if not ahead:
                return
            count = most if len(ahead) == 2 * most else len(ahead)
            names, found = [], []
            for path, future in (ahead.popleft() for _ in range(count)):
                if (prepared := seen.count_picture(future.result())) is not None:
                    names.append(str(path))
                    found.append(prepared)
                progress(1)
            pixels = np.array([one.pixels for one in found], np.uint8)
            yield Part(names, [0] * len(names), pixels, True, [one.doubts for one in found])
    finally:
        pool.shutdown(cancel_futures=True)
