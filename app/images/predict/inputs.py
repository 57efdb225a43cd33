"""The images to classify: what the user's paths name, cut into parts that fit memory, in the order given."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.processor import usable_cores
from app.files import hdf5_process
from app.images.pictures.finding import find_pictures
from app.images.pictures.preparing import Prepared, prepare
from app.images.pictures.reading import MAX_PIXELS, UnreadablePicture, read_picture, require_pillow
from app.images.predict.arrays import reader
from data_tools.dataset import Dataset

LISTED = 10  # pictures whose fault is told; the others are only counted

PictureShape = tuple[int, int, int]
"""Channels, height, width."""
Input = Dataset | list[Path]
"""An array file's images, or pictures that follow each other."""


@dataclass(frozen=True)
class Part:
    """Some of the images: (n, C, H, W) uint8, or float32 in [0, 1]. paths: the file of each, numbers: its place there.

    pictures: whether they are files of their own.
    """

    paths: list[str]
    numbers: list[int]
    images: np.ndarray
    pictures: bool

    @property
    def names(self) -> list[str]:
        """What to call each image, in short."""
        return [Path(path).name for path in self.paths] if self.pictures else [str(number) for number in self.numbers]


@dataclass
class Seen:
    """What turned up among the pictures. blank: of one colour only, once they are prepared.

    faults: one line for each of the first unreadable ones.
    """

    pictures: int = 0
    inverted: int = 0
    animated: int = 0
    blank: int = 0
    unreadable: int = 0
    faults: list[str] = field(default_factory=list)

    def note(self, found: tuple[Prepared, int] | UnreadablePicture) -> Prepared | None:
        """Count a picture, prepared and with the number of its frames, or unreadable; return it if it is readable."""
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


def gather(paths: Iterable[str]) -> list[Input]:
    """Read the array files among the paths, and find the pictures. Raises UserError."""
    inputs: list[Input] = []
    with hdf5_process.Reader() as hdf5:  # one process for all files
        for path in paths:
            if not path:  # Path("") is this folder
                raise UserError("an empty PATH names nothing: give '.' for this folder")
            read = None if path == "-" else reader(Path(path), hdf5.read)
            if read is not None:
                inputs.append(read(Path(path)))
                continue
            found = find_pictures([path])
            if inputs and isinstance(inputs[-1], list):
                inputs[-1] += found
            elif found:
                inputs.append(found)
    if any(isinstance(one, list) for one in inputs):
        require_pillow()
    return inputs


def size(one: Input) -> int:
    """Return the number of images."""
    return len(one) if isinstance(one, list) else len(one.images)


def cut(
    inputs: Iterable[Input],
    shape: PictureShape,
    invert: str,
    most: int,
    seen: Seen,
    progress: Callable[[int], object],
) -> Iterator[Part]:
    """Yield the images in parts of ``most``, the last one of an input with the rest, so that none is much smaller.

    Pictures are prepared for ``shape``, by threads that work ahead. seen: updated as they are read. progress: called
    with the number of images as they are read, or of an array when its part is done. Parts may be empty, where no
    picture of them can be read.
    """
    for one in inputs:
        if isinstance(one, list):
            yield from _cut_pictures(one, shape, invert, most, seen, progress)
            continue
        # Fractions stay together: whether images are k/255, and so become bytes, is a property of the whole file.
        parts = max(1, len(one.images) // most) if one.images.dtype == np.uint8 else 1
        ends = [*range(most, parts * most, most), len(one.images)]
        for start, end in zip([0, *ends], ends, strict=False):
            numbers = [*range(start, end)]
            yield Part([one.source] * len(numbers), numbers, one.images[start:end], False)
            progress(len(numbers))


def _cut_pictures(
    paths: Sequence[Path],
    shape: PictureShape,
    invert: str,
    most: int,
    seen: Seen,
    progress: Callable[[int], object],
) -> Iterator[Part]:
    def made(path: Path) -> tuple[Prepared, int] | UnreadablePicture:
        try:
            picture = read_picture(path, MAX_PIXELS)
        except UnreadablePicture as error:
            return error
        return prepare(picture, shape, invert), picture.info["frames"]

    pool = ThreadPoolExecutor(usable_cores())
    try:
        left = iter(paths)
        ahead: deque[tuple[Path, Future[tuple[Prepared, int] | UnreadablePicture]]] = deque()
        while True:
            # While a part is classified, the next one is read.
            ahead.extend((path, pool.submit(made, path)) for path in islice(left, 2 * most - len(ahead)))
            if not ahead:
                return
            count = most if len(ahead) == 2 * most else len(ahead)
            names, pixels = [], []
            for path, future in (ahead.popleft() for _ in range(count)):
                if (prepared := seen.note(future.result())) is not None:
                    names.append(str(path))
                    pixels.append(prepared.pixels)
                progress(1)
            images = np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8)
            yield Part(names, [0] * len(names), images, True)
    finally:
        pool.shutdown(cancel_futures=True)
