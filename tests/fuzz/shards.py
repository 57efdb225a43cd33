"""Shards, read by position as the readers of whole files read them; and receipts of classified shards."""

import gzip
import io
import re
from pathlib import Path
from random import Random

import numpy as np

from app.base.errors import UserError
from app.classify.receipts import read_receipt
from app.classify.shards import open_shard
from app.images.predict.inputs import read_images
from data_tools.inflate import GZIP_MAX_RATIO
from tests.fuzz.harness import Pair, Target
from tests.fuzz.hdf5 import generator, images
from tests.fuzz.idx import COLOUR, IMAGES, forms, idx, wrong_header
from tests.fuzz.mutate import damaged, other_json

FRACTIONS = np.random.default_rng(3).random((4, 3, 5, 6)).astype(np.float32)
X = ({"x": COLOUR.transpose(0, 2, 3, 1), "y": np.array([1, 2])}, {"x": FRACTIONS.astype(">f8"), "y": np.eye(4)})


def npy(array: np.ndarray) -> bytes:
    """The array's file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def read(path: Path) -> None:
    """In parts, from the end, where that is possible."""
    shard = open_shard(path)
    assert shard.count > 0 and shard.count * shard.bytes_per_image <= path.stat().st_size * GZIP_MAX_RATIO
    out = np.empty((shard.count, *shard.shape), shard.dtype)
    half = shard.count // 2
    with shard.open_reader() as opened, np.errstate(under="ignore"):
        for first, last in ((half, shard.count), (0, half)):
            opened.read(first, out[first:last])
        if shard.is_labelled:
            assert opened.read_labels(0, shard.count).shape == (shard.count,)
    assert out.dtype == np.uint8 or (out.min() >= 0 and out.max() <= 1)
    try:
        with np.errstate(under="ignore"):
            whole = read_images(path)
    except UserError as error:
        raise AssertionError("the reader of whole files refuses it") from error
    assert whole is not None
    expected = whole.images
    if out.dtype == expected.dtype:
        np.testing.assert_array_equal(out, expected)
    else:
        np.testing.assert_array_equal(np.rint(out * 255), expected)


def make(_: Path) -> Pair:
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

    return generate, read


def make_hdf5(_: Path) -> Pair:
    """HDF5 files, plain and in chunks."""
    return generator([content for arrays in X for content in images(arrays)]), read


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


TARGETS = (Target("shard", 600, make), Target("shard-hdf5", 120, make_hdf5), Target("receipt", 800, make_receipt))
