"""IDX files and pictures, old and new; shards, read by position as whole files are; receipts of classified shards."""

import gzip
import io
import re
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np

from app.base.errors import UserError
from app.classify.receipts import read_receipt
from app.classify.shards import open_shard
from app.images.pictures.preparing import prepare_picture
from app.images.pictures.reading import read_picture
from app.images.predict.inputs import read_array_file
from data_tools.dataset import load_files
from data_tools.idx import read_idx
from data_tools.inflate import GZIP_MAX_RATIO
from tests.fuzz.harness import Pair, Target
from tests.fuzz.hdf5 import generator, images
from tests.fuzz.mutate import EXTREMES, damaged, other_json

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


FRACTIONS = np.random.default_rng(3).random((4, 3, 5, 6)).astype(np.float32)
X = ({"x": COLOUR.transpose(0, 2, 3, 1), "y": np.array([1, 2])}, {"x": FRACTIONS.astype(">f8"), "y": np.eye(4)})


def npy(array: np.ndarray) -> bytes:
    """The array's file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def read_parts(path: Path) -> None:
    """In parts, from the end, where that is possible."""
    shard = open_shard(path)
    assert shard.count > 0 and shard.count * shard.bytes_per_image <= path.stat().st_size * GZIP_MAX_RATIO
    out = np.empty((shard.count, *shard.image_shape), shard.dtype)
    half = shard.count // 2
    with shard.open_reader() as opened, np.errstate(under="ignore"):
        for first, last in ((half, shard.count), (0, half)):
            opened.read(first, out[first:last])
        if shard.is_labelled:
            assert opened.read_labels(0, shard.count).shape == (shard.count,)
    assert out.dtype == np.uint8 or (out.min() >= 0 and out.max() <= 1)
    try:
        with np.errstate(under="ignore"):
            whole = read_array_file(path)
    except UserError as error:
        raise AssertionError("the reader of whole files refuses it") from error
    assert whole is not None
    expected = whole.images
    if out.dtype == expected.dtype:
        np.testing.assert_array_equal(out, expected)
    else:
        np.testing.assert_array_equal(np.rint(out * 255), expected)


def make_shard(_: Path) -> Pair:
    """IDX, plain and gzipped, and NPY files."""
    arrays = (IMAGES, COLOUR, COLOUR.transpose(0, 2, 3, 1).copy(), FRACTIONS, FRACTIONS[:, 0].astype(">f8"))
    goods = [*forms(IMAGES), idx(COLOUR), *map(npy, arrays)]

    def generate(rng: Random) -> bytes:
        chance = rng.random()
        if chance < 0.15:
            return wrong_header(rng, IMAGES)
        data = rng.choice(goods)
        if chance < 0.4:
            inner = damaged(rng, data) if rng.random() < 0.5 else data
            return damaged(rng, gzip.compress(inner, 1, mtime=0))
        return damaged(rng, data)

    return generate, read_parts


def make_hdf5(_: Path) -> Pair:
    """HDF5 files, plain and in chunks."""
    return generator([content for arrays in X for content in images(arrays)]), read_parts


DIGEST = "0123456789abcdef" * 4
RECEIPT = {
    "schema": "lenet5-inference/receipt/1",
    "shard": "/data/x.npy",
    "size": 1024,
    "mtime_ns": 1,
    "first": 0,
    "images": 7,
    "correct": 5,
    "identity": {"network": "lenet5", "weights": DIGEST, "precision": "fp32", "classes": 10},
    "sha256": {"labels": DIGEST, "logits": DIGEST},
}


def make_receipt(_: Path) -> Pair:
    """What ``classify --resume`` goes by."""

    def read(path: Path) -> None:
        found = read_receipt(path)
        assert type(found["images"]) is int and found["images"] > 0
        assert found["correct"] is None or 0 <= found["correct"] <= found["images"]
        digests = [*map(str, found["sha256"].values()), found["identity"]["weights"]]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        assert "labels" in found["sha256"] and isinstance(found["shard"], str)

    return lambda rng: other_json(rng, RECEIPT), read


TARGETS = (
    *(Target("idx", 4000, make), Target("idx-gz", 2500, make_zipped), Target("picture", 150, make_picture)),
    *(Target("shard", 600, make_shard), Target("shard-hdf5", 120, make_hdf5), Target("receipt", 800, make_receipt)),
)
