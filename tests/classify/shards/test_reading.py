"""Test that images and labels are read from shards of every format, at any position, as the file holds them."""

import gzip
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest

from app.classify.shards import Shard, open_shard, sources
from app.files import hdf5_process
from data_tools.idx import write_idx
from tests.fuzz.idx import idx, old

RNG = np.random.default_rng(5)
GREY = RNG.integers(0, 256, (50, 5, 7), np.uint8)
COLOUR = RNG.integers(0, 256, (50, 3, 5, 7), np.uint8)
LAST = np.ascontiguousarray(COLOUR.transpose(0, 2, 3, 1))
FLOATS = RNG.random((50, 1, 5, 7)).astype(np.float32)
LABELS = RNG.integers(0, 10, 50, np.uint8)
ONE_HOT = np.eye(10)[LABELS]


def npy_file(array: np.ndarray) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array)

    return write


def raw_file(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def hdf5_file(x: np.ndarray, y: np.ndarray | None = None, **options: Any) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=x, **options)
            if y is not None:
                file["y"] = y

    return write


def write_seven_bit_hdf5(path: Path) -> None:
    """Write numbers of seven bits above an unused lowest bit, so that the bytes in the file are not the numbers."""
    kind = h5py.h5t.STD_U8LE.copy()
    kind.set_precision(7)
    kind.set_offset(1)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(GREY.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space)).write_direct(GREY // 2)


def write_compact_hdf5(path: Path) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((2, 5, 7))
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, layout)).write_direct(GREY[:2])


packed: dict[str, Any] = {"chunks": (8, 5, 4), "compression": "gzip", "shuffle": True, "fletcher32": True}
members = gzip.compress(idx(GREY)[:9]) + gzip.compress(idx(GREY)[9:1000]) + gzip.compress(idx(GREY)[1000:])

# name → how its file is written, the images (N, C, H, W) in it, whether they are read in order.
FORMS: dict[str, tuple[Callable[[Path], object], np.ndarray, bool]] = {
    "idx": (raw_file(idx(GREY)), GREY[:, None], False),
    "idx in colour": (raw_file(idx(COLOUR)), COLOUR, False),
    "idx, channels last": (raw_file(idx(LAST)), COLOUR, False),
    "old idx": (raw_file(old(GREY)), GREY[:, None], False),
    "old idx, big-endian": (raw_file(old(GREY, "big")), GREY[:, None], False),
    "gzip": (raw_file(gzip.compress(idx(GREY))), GREY[:, None], True),
    "gzip of several members": (raw_file(members), GREY[:, None], True),
    "gzip of old idx": (raw_file(gzip.compress(old(GREY))), GREY[:, None], True),
    "npy": (npy_file(GREY), GREY[:, None], False),
    "npy in colour": (npy_file(COLOUR), COLOUR, False),
    "npy, channels last": (npy_file(LAST), COLOUR, False),
    "npy of floats": (npy_file(FLOATS), FLOATS, False),
    "npy of floats, grey": (npy_file(FLOATS[:, 0]), FLOATS, False),
    "npy of big-endian doubles": (npy_file(FLOATS.astype(">f8")), FLOATS, False),
    "npy of k/255": (npy_file(GREY / np.float32(255)), (GREY / np.float32(255))[:, None], False),
    "hdf5": (hdf5_file(GREY), GREY[:, None], False),
    "hdf5, channels last": (hdf5_file(LAST), COLOUR, False),
    "hdf5 of big-endian floats": (hdf5_file(FLOATS.astype(">f4")), FLOATS, False),
    "hdf5 of seven bits": (write_seven_bit_hdf5, (GREY // 2)[:, None], True),
    "hdf5 in chunks": (hdf5_file(LAST, chunks=(7, 5, 7, 3)), COLOUR, True),
    "hdf5, compressed": (hdf5_file(GREY, **packed), GREY[:, None], True),
    "hdf5, lzf": (hdf5_file(FLOATS.astype("f8"), chunks=(11, 1, 5, 7), compression="lzf"), FLOATS, True),
    "hdf5 in its header": (write_compact_hdf5, GREY[:2, None], True),
}


def write_and_open(folder: Path, write: Callable[[Path], object]) -> Shard:
    path = folder / "shard"
    write(path)
    return open_shard(path)


@pytest.mark.parametrize("form", FORMS)
def test_images_at_any_position(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, expected, sequential = FORMS[form]
    row = expected[0].nbytes
    monkeypatch.setattr("app.classify.shards.shard.CONVERTED_BYTES", 3 * row)
    monkeypatch.setattr(sources, "BAND_BYTES", 20 * row)
    shard = write_and_open(tmp_path, write)
    assert (shard.count, shard.image_shape, shard.dtype) == (len(expected), expected.shape[1:], expected.dtype)
    assert shard.is_sequential == sequential and not shard.is_labelled and shard.path == tmp_path / "shard"
    assert shard.bytes_per_image == row
    with pickle.loads(pickle.dumps(shard)).open_reader() as opened_reader:
        for first, count in ((0, 1), (0, 2), (1, 1), (2, 0), (5, 17), (22, 28), (0, 50), (49, 1), (3, 40)):
            if first + count <= len(expected):
                out = np.empty((count, *shard.image_shape), shard.dtype)
                opened_reader.read(first, out)
                np.testing.assert_array_equal(out, expected[first : first + count])
    shard.check_unchanged()


def read_all_labels(shard: Shard) -> np.ndarray:
    """Return all labels of a shard, read in parts from the end."""
    with shard.open_reader() as opened_reader:
        parts = [
            opened_reader.read_labels(first, min(13, shard.count - first)) for first in range(0, shard.count, 13)[::-1]
        ]
    return np.concatenate(parts[::-1])


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("labels_suffix", ["", ".gz"])
def test_labels_beside_the_images(suffix: str, labels_suffix: str, tmp_path: Path) -> None:
    write_idx(tmp_path / f"day-images-idx3-ubyte{suffix}", GREY)
    write_idx(tmp_path / f"day-labels-idx1-ubyte{labels_suffix}", LABELS)
    path = tmp_path / f"day-images-idx3-ubyte{suffix}"
    np.testing.assert_array_equal(read_all_labels(open_shard(path)), LABELS)
    assert not open_shard(path, unlabelled=True).is_labelled


@pytest.mark.parametrize("y", [LABELS, LABELS[:, None].astype(">i8"), ONE_HOT, ONE_HOT.astype(np.float32), ONE_HOT > 0])
def test_labels_in_hdf5(y: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if y.dtype == bool:
        y = y.astype(np.int8)
    monkeypatch.setattr("app.classify.shards.shard.CONVERTED_BYTES", 100)
    shard = write_and_open(tmp_path, hdf5_file(GREY, y))
    np.testing.assert_array_equal(read_all_labels(shard), LABELS)
    assert not open_shard(shard.path, unlabelled=True).is_labelled


@pytest.mark.parametrize("write", [npy_file(LABELS.astype(np.int64)), raw_file(idx(LABELS)), hdf5_file(GREY, ONE_HOT)])
def test_labels_in_a_named_file(write: Callable[[Path], object], tmp_path: Path) -> None:
    hdf5_file(GREY, 9 - LABELS)(tmp_path / "shard")
    write(tmp_path / "labels")
    np.testing.assert_array_equal(read_all_labels(open_shard(tmp_path / "shard", tmp_path / "labels")), LABELS)


def test_several_shards_need_one_process_of_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader_of = mock.Mock(wraps=hdf5_process.Reader)
    monkeypatch.setattr(hdf5_process, "Reader", reader_of)
    for name in "abc":
        hdf5_file(GREY)(tmp_path / name)
    with hdf5_process.Reader() as process:
        assert [open_shard(tmp_path / name, hdf5=process).count for name in "abc"] == [50] * 3
    assert reader_of.call_count == 1


def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """78 GB in a sparse file: the header is read at once, and images at its end as fast as at its beginning."""
    count = 100_000_000
    with (tmp_path / "shard").open("wb") as file:
        file.write(idx(GREY[:0], (count, 28, 28)))
        os.truncate(file.fileno(), 16 + count * 784)
        os.pwrite(file.fileno(), b"\7" * 784, 16 + (count - 2) * 784)
    shard = open_shard(tmp_path / "shard")
    out = np.empty((3, 1, 28, 28), np.uint8)
    with shard.open_reader() as opened_reader:
        opened_reader.read(count - 3, out)
    assert shard.count == count and out.any(axis=(1, 2, 3)).tolist() == [False, True, False]


@pytest.mark.parametrize("form", ["idx", "gzip", "hdf5, compressed", "npy, channels last"])
def test_several_threads_share_a_reader(form: str, tmp_path: Path) -> None:
    write, expected, _ = FORMS[form]
    shard = write_and_open(tmp_path, write)
    found = np.empty_like(expected)
    with shard.open_reader() as opened_reader:
        opened_reader.read(0, np.empty((1, *shard.image_shape), np.uint8))  # HDF5's process ends with this thread

        def read_every_fourth(start: int) -> None:
            for at in range(start, 50, 4):
                opened_reader.read(at, found[at : at + 1])

        threads = [threading.Thread(target=read_every_fourth, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_array_equal(found, expected)


def test_wrong_arguments_raise_value_error(tmp_path: Path) -> None:
    shard = write_and_open(tmp_path, raw_file(idx(GREY)))
    with shard.open_reader() as opened_reader:
        for first, shape, dtype in ((49, (2, 1, 5, 7), "u1"), (-1, (1, 1, 5, 7), "u1"), (0, (1, 1, 5, 7), "f4")):
            with pytest.raises(ValueError, match=r"has 50 rows|images of this shard are uint8"):
                opened_reader.read(first, np.empty(shape, dtype))
        with pytest.raises(ValueError, match="images of this shard are"):
            opened_reader.read(0, np.empty((2, 1, 7, 5), np.uint8).transpose(0, 1, 3, 2))
        with pytest.raises(ValueError, match="unknown"):
            opened_reader.read_labels(0, 1)


def test_the_system_reads_ahead_in_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[Any] = []
    monkeypatch.setattr(sources.os, "posix_fadvise", lambda number, *how: advice.append((os.fstat(number).st_ino, how)))
    shard = write_and_open(tmp_path, npy_file(GREY))
    with shard.open_reader():
        assert advice == [(shard.path.stat().st_ino, (0, 0, os.POSIX_FADV_SEQUENTIAL))]
