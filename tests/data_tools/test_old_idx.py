"""Old IDX files begin with four zero bytes; their numbers are in the byte order that fits the file's content."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from data_tools.colour import read_images
from data_tools.dataset import load_files
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


BAD = {
    "one byte short": old(IMAGES)[:-1],
    "one byte long": old(IMAGES) + b"\0",
    "another count": old(IMAGES, shape=(41, 28, 28)),
    "no items": old(IMAGES[:0]),
    "nothing but zeros": bytes(100),
    "labels as images": old(LABELS),
    "of rank 4": old(IMAGES[:, None]),
    "absurd": old(IMAGES, shape=(2**31 - 1,) * 3),
}


@PACKED
@pytest.mark.parametrize("case", BAD)
def test_wrong_sizes_are_one_line(case: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = written(tmp_path, pack(BAD[case]))
    never = Mock(side_effect=AssertionError("allocated for a header that cannot be true"))
    error = user_error(lambda: read_idx(path, (3, 4), allocate=never))
    wrong = "starts with four zero bytes, as old files do, but its content is not"
    assert str(path) in error and wrong in error and error.endswith("bytes; get a fresh copy or name another file")


def test_a_header_without_end(tmp_path: Path) -> None:
    for pack in (bytes, gzip.compress):
        with pytest.raises(UserError, match="ends inside the 16-byte IDX header"):
            read_idx(written(tmp_path, pack(bytes(15))), 3)


def test_too_many_items(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="declares 40 items, more than the 39 expected"):
        read_idx(written(tmp_path, old(IMAGES)), 3, 39)


def test_a_damaged_archive(tmp_path: Path) -> None:
    content = gzip.compress(old(IMAGES))
    for bad, wrong in (
        (content[:-9], "truncated gzip"),
        (content[:-8] + bytes(8), "damaged gzip"),
        (content * 2, "not"),
    ):
        with pytest.raises(UserError, match=wrong):
            read_idx(written(tmp_path, bad), 3)
