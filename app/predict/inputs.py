"""The images to classify: what the user's paths name, cut into parts that fit memory, in the order given."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from app.pictures import MAX_PIXELS, Prepared, UnreadablePicture, find_pictures, prepare, read_picture, require_pillow
from app.predict.arrays import reader
from app.processor import usable_cores
from data_tools.dataset import Dataset

LISTED = 10  # pictures whose fault is told; the others are only counted

PictureShape = tuple[int, int, int]
"""Channels, height, width."""
Input = Dataset | list[Path]
"""An array file's images, or pictures that follow each other."""


@dataclass(frozen=True)
class Part:
    """Some of the images: (n, C, H, W) uint8, or float32 in [0, 1]. paths: the file of each, numbers: its place there.

    pictures: whether they are files of their own. taken: how many there would be if all could be read.
    """

    paths: list[str]
    numbers: list[int]
    images: np.ndarray
    pictures: bool
    taken: int

    @property
    def names(self) -> list[str]:
        """What to call each image, in short."""
        return [Path(path).name for path in self.paths] if self.pictures else [str(number) for number in self.numbers]


@dataclass
class Seen:
    """What turned up among the pictures. faults: one line for each of the first unreadable ones."""

    pictures: int = 0
    inverted: int = 0
    animated: int = 0
    unreadable: int = 0
    faults: list[str] = field(default_factory=list)


def gather(paths: Iterable[str]) -> list[Input]:
    """Read the array files among the paths, and find the pictures. Raises UserError."""
    inputs: list[Input] = []
    for path in paths:
        read = None if path == "-" else reader(Path(path))
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


def cut(inputs: Iterable[Input], shape: PictureShape, invert: str, most: int, seen: Seen) -> Iterator[Part]:
    """Yield the images in parts of at most ``most``; pictures are prepared for ``shape``, by threads that work ahead.

    seen: updated as pictures are read. Parts may be empty, where no picture of them can be read.
    """
    for one in inputs:
        if isinstance(one, list):
            yield from _cut_pictures(one, shape, invert, most, seen)
            continue
        # Fractions stay together: whether images are k/255, and so become bytes, is a property of the whole file.
        step = most if one.images.dtype == np.uint8 else len(one.images)
        for start in range(0, len(one.images), step):
            images = one.images[start : start + step]
            numbers = [*range(start, start + len(images))]
            yield Part([one.source] * len(images), numbers, images, False, len(images))


def _cut_pictures(paths: Sequence[Path], shape: PictureShape, invert: str, most: int, seen: Seen) -> Iterator[Part]:
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
            now = [ahead.popleft() for _ in range(min(most, len(ahead)))]
            yield _part([(path, future.result()) for path, future in now], shape, seen)
    finally:
        pool.shutdown(cancel_futures=True)


def _part(
    results: Sequence[tuple[Path, tuple[Prepared, int] | UnreadablePicture]], shape: PictureShape, seen: Seen
) -> Part:
    names, pixels = [], []
    for path, found in results:
        seen.pictures += 1
        if isinstance(found, UnreadablePicture):
            seen.unreadable += 1
            if len(seen.faults) < LISTED:
                seen.faults.append(str(found))
            continue
        prepared, frames = found
        seen.inverted += prepared.inverted
        seen.animated += frames > 1
        names.append(str(path))
        pixels.append(prepared.pixels)
    images = np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8)
    return Part(names, [0] * len(names), images, True, len(results))
