"""Files of images: IDX, plain and gzipped, also with old headers, and damaged with a matching checksum; pictures."""

import gzip
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np

from app.base.errors import UserError
from app.images.pictures.preparing import prepare_picture
from app.images.pictures.reading import read_picture
from data_tools.dataset import load_files
from data_tools.idx import read_idx
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import EXTREMES, damaged

IMAGES = np.random.default_rng(1).integers(0, 256, (3, 5, 6), np.uint8)
COLOUR = np.random.default_rng(2).integers(0, 256, (2, 3, 4, 5), np.uint8)
LABELS = np.array([1, 2, 3], np.uint8)
SHAPE = (1, 28, 28)  # of pictures, for a network


def idx(array: np.ndarray, header: tuple[int, ...] | None = None) -> bytes:
    """The array's file, with its own header or another."""
    shape = array.shape if header is None else header
    return bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape) + array.tobytes()


def old(array: np.ndarray, order: Literal["little", "big"] = "little", header: tuple[int, ...] | None = None) -> bytes:
    """The array's file with an old header, its own or another: no type, no rank, numbers in either byte order."""
    shape = array.shape if header is None else header
    return bytes(4) + b"".join(n.to_bytes(4, order) for n in shape) + array.tobytes()


def forms(array: np.ndarray) -> tuple[bytes, ...]:
    """Every file that holds the array."""
    return idx(array), old(array), old(array, "big")


def wrong_header(rng: Random, array: np.ndarray) -> bytes:
    """Some of its dimensions are extreme, or there are more or fewer of them."""
    shape = list(array.shape)
    shape[rng.randrange(len(shape))] = rng.choice(EXTREMES) % 2**32
    if rng.random() < 0.3:
        shape = (shape * 3)[: rng.randrange(8)]
    return idx(array, tuple(shape)) if rng.random() < 0.6 else old(array, header=tuple(shape))


def make(folder: Path) -> Pair:
    """Plain files of images or labels."""

    def generate(rng: Random) -> bytes:
        array = rng.choice((IMAGES, LABELS, COLOUR))
        return wrong_header(rng, array) if rng.random() < 0.2 else damaged(rng, rng.choice(forms(array)))

    def read(path: Path) -> None:
        content = path.read_bytes()
        for ranks in ((1,), (3,), (3, 4)):
            try:
                found = read_idx(path, ranks)
            except UserError as error:
                failure = error
                continue
            assert found.dtype == np.uint8 and found.ndim in ranks and found.size and found.flags.c_contiguous
            assert content in forms(found), "not what the file holds, to the last byte"
            return
        raise failure

    return generate, read


def make_zipped(folder: Path) -> Pair:
    """Gzipped files: damaged outside, where the checksum tells, or inside."""

    def generate(rng: Random) -> bytes:
        good = rng.choice((*forms(IMAGES), idx(COLOUR)))
        chance = rng.random()
        if chance < 0.6:
            return damaged(rng, gzip.compress(good, rng.choice((0, 1, 9)), mtime=0))
        inner = wrong_header(rng, IMAGES) if chance < 0.7 else damaged(rng, good)
        zipped = gzip.compress(inner, 1, mtime=0)
        return zipped + rng.choice((b"", b"", b"", b"\0", zipped))

    def read(path: Path) -> None:
        data = load_files(path, None)
        assert data.images.dtype == np.uint8 and data.images.ndim == 4 and data.images.size and data.labels is None
        content = path.read_bytes()
        inner = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        images = data.images
        held = (*forms(images[:, 0]), idx(images), idx(images.transpose(0, 2, 3, 1)))
        assert inner in held, "not what the file holds, to the last byte"

    return generate, read


def make_picture(_: Path) -> Pair:
    """What predict does with each file."""
    from tests.support.pictures import BOMBS, KINDS

    goods = [*(make() for make, _, _ in KINDS.values()), *BOMBS.values()]

    def read(path: Path) -> None:
        image = read_picture(path)
        assert image.mode in ("L", "RGB") and image.info["frames"] >= 1
        assert prepare_picture(image, SHAPE).pixels.shape == SHAPE

    return lambda rng: damaged(rng, rng.choice(goods)), read


TARGETS = (Target("idx", 4000, make), Target("idx-gz", 2500, make_zipped), Target("picture", 150, make_picture))
