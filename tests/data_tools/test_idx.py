"""Test that the IDX reader returns exactly the file's content, or raises a one-line UserError that names the file."""

import gzip
import hashlib
import itertools
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from data_tools.idx import GZIP_MAGIC, content_sha256, read_idx, write_idx
from tests.support import tiny_fashion
from tests.support.shell import user_error

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
RAW = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4) + IMAGES.tobytes()
ZIPPED = gzip.compress(RAW, mtime=0)
PACKED = pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])


def idx_file(*shape: int, content: bytes = b"", kind: int = 8, rank: int | None = None) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, rank or len(shape), *shape) + content


@pytest.mark.parametrize("name", ["raw", "raw.gz"])
@pytest.mark.parametrize("cuts", [None, [], [20], [2], [4, 16], [len(RAW)], [0]], ids=str)
def test_content_decides_whether_a_file_is_gzipped(tmp_path: Path, name: str, cuts: list[int] | None) -> None:
    """cuts: ends of the gzip members; None: the file is not gzipped."""
    members = [gzip.compress(RAW[a:b]) for a, b in itertools.pairwise([0, *(cuts or []), len(RAW)])]
    (tmp_path / name).write_bytes(RAW if cuts is None else b"".join(members))
    array = read_idx(tmp_path / name, rank=3)
    np.testing.assert_array_equal(array, IMAGES, strict=True)
    assert array.flags.c_contiguous


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "float32", "float64", "rank 1", "rank 4"])
@pytest.mark.parametrize("rank", [1, 3])
def test_errors_for_other_types_and_ranks_say_to_convert(tmp_path: Path, kind: str, rank: int) -> None:
    codes = {"int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    has = int(kind[-1]) if kind.startswith("rank") else rank
    if has == rank and kind.startswith("rank"):
        has = 2
    path = tmp_path / "file"
    path.write_bytes(idx_file(*[2] * has, kind=codes.get(kind, 8), content=bytes(8 * 2**has)))
    error = user_error(lambda: read_idx(path, rank))
    what = "images must be uint8 (0 to 255), N x H x W" if rank == 3 else "labels must be uint8, N"
    assert (kind if kind in codes else f"rank {has}, where rank {rank}") in error
    assert f"; {what}: convert them with NumPy" in error and "fresh copy" not in error


BAD_CONTENT = {
    "wrong magic": (b"\x01\x02" + RAW[2:], "starts with 01020803"),
    "other type": (idx_file(2, 3, 4, kind=0x0D, content=bytes(96)), "type 0x0d"),
    "wrong rank": (idx_file(24, content=bytes(24)), "rank 1, where rank 3"),
    "no items": (idx_file(0, 28, 28), "contains no items"),
    "header cut": (RAW[:9], "inside the 16-byte IDX header"),
    "magic cut": (RAW[:2], "inside the 16-byte IDX header"),
    "more items than wanted": (idx_file(9, 1, 1, content=bytes(9)), "9 items, more than the 8"),
    "above the cap": (idx_file(4, 2**31, 2**31), "bytes can contain"),
    "one byte short": (RAW[:-1], "too short: 23 of the 24"),
    "one byte long": (RAW + b"\0", "too long"),
    "web page": (b"<!DOCTYPE html><title>404</title>", "is a web page"),
}


@pytest.mark.parametrize("zipped", [False, True], ids=["raw", "gzip"])
@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content_is_refused(tmp_path: Path, case: str, zipped: bool) -> None:
    content, message = BAD_CONTENT[case]
    check_refused(tmp_path, gzip.compress(content) if zipped else content, message)


def check_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    error = user_error(lambda: read_idx(path, rank=3, max_items=8))
    assert message in error and str(path) in error


BAD_GZIP = {
    "empty file": (b"", "is empty"),
    "nothing inside": (gzip.compress(b""), "decompresses to nothing"),
    "bad CRC": (ZIPPED[:-8] + bytes(4) + ZIPPED[-4:], "damaged gzip file"),
    "bad length": (ZIPPED[:-4] + bytes(4), "damaged gzip file"),
    "truncated in the trailer": (ZIPPED[:-1], "truncated gzip"),
    "truncated in the content": (ZIPPED[: len(ZIPPED) // 2], "truncated gzip"),
    "magic only": (ZIPPED[:2], "truncated gzip"),
    "second array": (ZIPPED + ZIPPED, "is too long"),
    "second member cut": (gzip.compress(RAW[:20]) + gzip.compress(RAW[20:])[:-1], "truncated gzip"),
    "second member damaged": (gzip.compress(RAW[:20]) + gzip.compress(RAW[20:])[:-4] + bytes(4), "damaged gzip file"),
    "rubbish behind": (ZIPPED + b"\0", "data that is not gzip after"),
    "half a magic behind": (ZIPPED + GZIP_MAGIC[:1], "truncated gzip"),
    "gzip in gzip": (gzip.compress(ZIPPED), "is a gzip file, not an IDX file"),
}


@pytest.mark.parametrize("case", BAD_GZIP)
def test_bad_gzip_is_refused(tmp_path: Path, case: str) -> None:
    check_refused(tmp_path, *BAD_GZIP[case])


def test_too_many_gzip_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.inflate.MAX_MEMBERS", 5)
    path = tmp_path / "images.gz"
    path.write_bytes(ZIPPED + gzip.compress(b"") * 4)
    np.testing.assert_array_equal(read_idx(path, rank=3), IMAGES)
    check_refused(tmp_path, ZIPPED + gzip.compress(b"") * 5, "more than 5 gzip members; compress it in one")


def test_a_gzip_bomb_is_inflated_only_as_declared(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx_file(1, 28, 28, content=bytes(64 << 20)), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="too long"):
            read_idx(path, rank=3)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@PACKED
def test_impossible_headers_allocate_nothing(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "images"
    path.write_bytes(pack(idx_file(2_000_000, 28, 28, content=bytes(1000))))
    with pytest.raises(UserError, match="can contain"):
        read_idx(path, rank=3, allocate=Mock(side_effect=AssertionError("allocated on the header's word alone")))


def test_a_highly_compressible_file_is_not_mistaken_for_a_bomb(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gz"
    write_idx(path, np.zeros((8, 1024, 1024), np.uint8))
    assert not read_idx(path, rank=3).any()


def test_too_little_memory_is_a_user_error(tmp_path: Path) -> None:
    write_idx(tmp_path / "images", IMAGES)
    with pytest.raises(UserError, match="not enough memory"):
        read_idx(tmp_path / "images", rank=3, allocate=Mock(side_effect=MemoryError))


@pytest.mark.parametrize("shape", [(1,), (300,), (2, 3, 4)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_written_files_are_read_back(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    path = tmp_path / f"file{suffix}"
    write_idx(path, array)
    first = path.read_bytes()
    if suffix:
        assert first[:2] == b"\x1f\x8b" and first[4:8] == bytes(4), "no time stamp: same array, same bytes"
    np.testing.assert_array_equal(read_idx(path, len(shape)), array)
    write_idx(path, array)
    assert path.read_bytes() == first and list(tmp_path.iterdir()) == [path]


def test_the_hash_is_that_of_the_uncompressed_file() -> None:
    assert content_sha256(IMAGES) == hashlib.sha256(RAW).hexdigest()


def test_failed_writes_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_idx(tmp_path / "none" / "file", IMAGES)
    with pytest.raises(ValueError, match="float64"):
        write_idx(tmp_path / "file", IMAGES.astype(float))
    assert list(tmp_path.iterdir()) == []


# --- old files: they begin with four zero bytes, and only the length of the content tells the byte order


def old_file(array: np.ndarray, order: str = "<", shape: tuple[int, ...] | None = None) -> bytes:
    """Return a file of the array as old programs wrote it, with its own shape or another."""
    sizes = array.shape if shape is None else shape
    return bytes(4) + struct.pack(f"{order}{len(sizes)}I", *sizes) + array.tobytes()


def write_content(folder: Path, content: bytes, name: str = "old") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@PACKED
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    "array",
    [tiny_fashion.IMAGES, tiny_fashion.LABELS, tiny_fashion.IMAGES[:1], tiny_fashion.LABELS[:1]],
    ids=lambda array: str(array.shape),
)
def test_old_files_are_read(array: np.ndarray, order: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    found = read_idx(write_content(tmp_path, pack(old_file(array, order))), array.ndim)
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous


@PACKED
def test_the_length_decides_between_byte_orders(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """256 labels in one order are 65,536 in the other; the array has the right size at once."""
    for count in (256, 65536):
        labels = np.random.default_rng(1).integers(0, 10, count, np.uint8)
        allocate = Mock(side_effect=lambda nbytes: np.empty(nbytes, np.uint8))
        for order in "<>":
            found = read_idx(write_content(tmp_path, pack(old_file(labels, order))), 1, allocate=allocate)
            np.testing.assert_array_equal(found, labels)
        assert [call.args for call in allocate.call_args_list] == [(count,)] * 2


SIZES = "starts with four zero bytes, as old files do, but its content is not .* bytes"
BAD = {
    "one byte short": (old_file(tiny_fashion.IMAGES)[:-1], SIZES),
    "one byte long": (old_file(tiny_fashion.IMAGES) + b"\0", SIZES),
    "another count": (old_file(tiny_fashion.IMAGES, shape=(41, 28, 28)), SIZES),
    "no items": (old_file(tiny_fashion.IMAGES[:0]), SIZES),
    "nothing but zeros": (bytes(100), SIZES),
    "labels as images": (old_file(tiny_fashion.LABELS), SIZES),
    "of rank 4": (old_file(tiny_fashion.IMAGES[:, None]), SIZES),
    "absurd": (old_file(tiny_fashion.IMAGES, shape=(2**31 - 1,) * 3), SIZES),
    "a header without end": (bytes(15), "ends inside the 16-byte IDX header"),
    "too many items": (old_file(np.ones((42, 28, 28), np.uint8)), "declares 42 items, more than the 41 expected"),
}


@PACKED
@pytest.mark.parametrize("case", BAD)
def test_wrong_sizes_give_a_one_line_error(case: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content, wrong = BAD[case]
    path = write_content(tmp_path, pack(content))
    never = Mock(side_effect=AssertionError("allocated for a header that cannot be true"))
    error = user_error(lambda: read_idx(path, 3, 41, never))
    assert re.fullmatch(f"{path} {wrong}; get a fresh copy or name another file", error)
