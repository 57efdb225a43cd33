"""Old IDX files begin with four zero bytes; their numbers are in the byte order that fits the file's content."""

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from data_tools.dataset import load_files, read_images
from data_tools.idx import read_idx
from tests.support.shell import user_error
from tests.support.tiny_fashion import IMAGES, LABELS

PACKED = pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])


def old(array: np.ndarray, order: str = "<", shape: tuple[int, ...] | None = None) -> bytes:
    """The array's old file, with its own shape or another."""
    sizes = array.shape if shape is None else shape
    return bytes(4) + struct.pack(f"{order}{len(sizes)}I", *sizes) + array.tobytes()


def written(folder: Path, content: bytes, name: str = "old") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@PACKED
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[:1], LABELS[:1]], ids=lambda array: str(array.shape))
def test_old_files_are_read(array: np.ndarray, order: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    found = read_idx(written(tmp_path, pack(old(array, order))), array.ndim)
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous


@PACKED
def test_byte_orders_that_both_seem_possible(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """256 labels, or 65,536: what follows tells, and it goes into memory of the right size."""
    for count in (256, 65536):
        labels = np.random.default_rng(1).integers(0, 10, count, np.uint8)
        allocate = Mock(side_effect=lambda nbytes: np.empty(nbytes, np.uint8))
        for order in "<>":
            found = read_idx(written(tmp_path, pack(old(labels, order))), 1, allocate=allocate)
            np.testing.assert_array_equal(found, labels)
        assert [call.args for call in allocate.call_args_list] == [(count,)] * 2


@PACKED
def test_old_files_are_a_data_set(pack: Callable[[bytes], bytes], tmp_path: Path, cache: Path) -> None:
    images, labels = (
        written(tmp_path, pack(old(array)), name) for name, array in (("images", IMAGES), ("labels", LABELS))
    )
    data = load_files(images, labels)
    np.testing.assert_array_equal(data.images, IMAGES[:, None])
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.split == "test" and read_images(images).shape == data.images.shape


SIZES = "starts with four zero bytes, as old files do, but its content is not .* bytes"
BAD = {
    "one byte short": (old(IMAGES)[:-1], SIZES),
    "one byte long": (old(IMAGES) + b"\0", SIZES),
    "another count": (old(IMAGES, shape=(41, 28, 28)), SIZES),
    "no items": (old(IMAGES[:0]), SIZES),
    "nothing but zeros": (bytes(100), SIZES),
    "labels as images": (old(LABELS), SIZES),
    "of rank 4": (old(IMAGES[:, None]), SIZES),
    "absurd": (old(IMAGES, shape=(2**31 - 1,) * 3), SIZES),
    "a header without end": (bytes(15), "ends inside the 16-byte IDX header"),
    "too many items": (old(np.ones((42, 28, 28), np.uint8)), "declares 42 items, more than the 41 expected"),
}


@PACKED
@pytest.mark.parametrize("case", BAD)
def test_wrong_sizes_are_one_line(case: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content, wrong = BAD[case]
    path = written(tmp_path, pack(content))
    never = Mock(side_effect=AssertionError("allocated for a header that cannot be true"))
    error = user_error(lambda: read_idx(path, 3, 41, never))
    assert re.fullmatch(f"{path} {wrong}; get a fresh copy or name another file", error)
