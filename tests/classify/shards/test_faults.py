"""Test shards that cannot be opened or read: the error is one line with the file and the remedy."""

import gzip
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.classify.shards import Shard, find_shards, open_shard, opening, sources
from data_tools.idx import write_idx
from tests.classify.shards.test_reading import FLOATS, GREY, LABELS, hdf5_file, npy_file, raw_file
from tests.fuzz.idx import idx, old
from tests.support.shell import user_error

ZIPPED = gzip.compress(idx(GREY), mtime=0)


def write_short_npy(path: Path) -> None:
    npy_file(GREY)(path)
    os.truncate(path, path.stat().st_size - 1)


def write_group(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("x")
        file["images"] = GREY


def write_unallocated_dataset(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", GREY.shape, "u1")


def write_external_dataset(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", GREY.shape, "u1", external=[("secret", 0, GREY.nbytes)])


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (raw_file(b""), "is empty; get a fresh copy"),
    "a picture": (raw_file(b"\x89PNG\r\n\x1a\n" + bytes(20)), "is a PNG picture, not an IDX file; store"),
    "too short": (raw_file(idx(GREY)[:-1]), "is too short: 1749 of the 1750 bytes that its header declares; get"),
    "too long": (raw_file(idx(GREY) + b"x"), "is too long: data follows the 1750 bytes that its header declares; get"),
    "another count": (raw_file(idx(GREY, (51, 5, 7))), r"declares 1785 bytes of content, more than its 1766 bytes can"),
    "an old header": (raw_file(old(GREY)[:-1]), "starts with four zero bytes, as old files do, but its content is not"),
    "gzip of less than it can be": (raw_file(gzip.compress(idx(GREY, (2**31, 5, 7)))), "declares .* more than its"),
    "gzip, cut in its header": (raw_file(ZIPPED[:15]), "is a truncated gzip file; get a fresh copy"),
    "labels": (raw_file(idx(LABELS)), "is an IDX file of rank 1, where rank 3 or 4 is needed; images must be"),
    "integers": (npy_file(GREY.astype("i4")), "is int32; store it as uint8, or as float32 or float64"),
    "one image": (npy_file(GREY[0]), r"has shape \(5, 7\); it must be \(N, H, W\) or"),
    "no channels": (npy_file(np.zeros((4, 5, 6, 7), "u1")), r"has shape \(4, 5, 6, 7\); it must be .* 1 or 3 channels"),
    "columns": (npy_file(np.asfortranarray(GREY)), "is stored by columns; save it again with numpy.ascontiguousarray"),
    "short": (write_short_npy, "has 1,749 bytes of numbers, which is not what its shape .* needs; get a fresh copy"),
    "npy of objects": (raw_file(b"\x93NUMPY\1\0\x10\0{'descr': '|O'}\n"), ": it is no array: .*; save it again"),
    "other names": (hdf5_file(GREY), "contains images, but no dataset x; store the images as x"),
    "a group": (write_group, "contains images, but no dataset x; store the images as x"),
    "in another file": (write_external_dataset, "dataset 'x' keeps its data in another file; store it"),
    "hdf5, never written": (write_unallocated_dataset, "stores 0;"),
    "hdf5, nothing": (hdf5_file(GREY[:0]), r"has shape \(0, 5, 7\); it must be .* at least one image"),
    "hdf5 of words": (hdf5_file(GREY.astype("u2")), "is uint16; store it as uint8"),
    "labels in three": (hdf5_file(GREY, np.zeros((50, 2, 2))), r"is float64 \(50, 2, 2\); it must be \(N, classes\)"),
    "few labels": (hdf5_file(GREY, LABELS[:9]), "shard has 9 labels but .*shard has 50 images; name files that belong"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_shard_that_cannot_be_opened(case: str, tmp_path: Path) -> None:
    write, message = CASES[case]
    path = tmp_path / "shard"
    write(path)
    if case == "other names":
        with h5py.File(path, "r+") as file:
            file.move("x", "images")
    with pytest.raises(UserError, match=f"^[^\n]*shard[^\n]*{message}[^\n]*$"):
        open_shard(path)


def read_error(shard: Shard, first: int = 0, count: int | None = None) -> str:
    """Return the error of reading ``count`` images, by default all, from image ``first`` on."""
    out = np.empty((shard.count if count is None else count, *shard.image_shape), shard.dtype)

    def read() -> None:
        with shard.open_reader() as reader:
            reader.read(first, out)

    return user_error(read)


def flip_bit(content: bytes, at: int) -> bytes:
    """Return the content with the lowest bit of the byte at ``at`` inverted."""
    data = bytearray(content)
    data[at] ^= 1
    return bytes(data)


DAMAGED = "is a damaged gzip file (Error -3 while decompressing data: "
GZIPPED = {
    "corrupt in the middle": (flip_bit(ZIPPED, len(ZIPPED) // 2), DAMAGED),
    "another checksum": (flip_bit(ZIPPED, -6), DAMAGED),
    "another length": (flip_bit(ZIPPED, -2), DAMAGED),
    "too short": (
        gzip.compress(idx(GREY, (51, 5, 7))),
        "is too short: 1750 of the 1785 bytes that its header declares",
    ),
    "too long": (gzip.compress(idx(GREY) + b"x"), "is too long: data follows the 1750 bytes that its header declares"),
}


@pytest.mark.parametrize("case", GZIPPED)
def test_a_gzip_file_that_fails_while_it_is_read(case: str, tmp_path: Path) -> None:
    content, message = GZIPPED[case]
    path = tmp_path / "shard"
    path.write_bytes(content)
    assert read_error(open_shard(path)).startswith(f"{path} {message}")


def test_the_images_before_the_fault_can_be_read(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (2000, 28, 28), np.uint8)
    path, zipped = tmp_path / "shard", gzip.compress(idx(images))
    path.write_bytes(flip_bit(zipped, len(zipped) * 3 // 4))
    shard, out = open_shard(path), np.empty((1000, 1, 28, 28), np.uint8)
    with shard.open_reader() as reader:
        reader.read(0, out)
        np.testing.assert_array_equal(out[:, 0], images[:1000])
        for _ in range(2):
            assert user_error(lambda: reader.read(1000, out)).startswith(f"{path} is a damaged gzip file")
        reader.read(0, out)
        np.testing.assert_array_equal(out[:, 0], images[:1000])


def test_a_file_that_changed_after_its_header_was_read(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    for write in (raw_file(idx(GREY)), raw_file(ZIPPED), npy_file(GREY), hdf5_file(GREY)):
        write(path)
        shard = open_shard(path)
        size = path.stat().st_size
        os.truncate(path, size - 1)
        expected = f"{path} has {size - 1:,} bytes where it had {size:,} when its header was read: run again"
        assert read_error(shard).startswith(expected)
        written = f"{path} was written during the run: run again when nothing writes it"
        assert user_error(shard.check_unchanged) == written
        path.unlink()
        assert read_error(shard).startswith(f"{path} does not exist")
        assert user_error(shard.check_unchanged).startswith(f"{path} is gone (No such file")


@pytest.mark.parametrize("form", ["idx", "gzip", "hdf5"])
def test_a_file_that_is_written_while_it_is_read(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BAND_BYTES", 1)
    path = tmp_path / "shard"
    writers = {"idx": raw_file(idx(GREY)), "gzip": raw_file(ZIPPED), "hdf5": hdf5_file(GREY, chunks=(10, 5, 7))}
    writers[form](path)
    shard, out = open_shard(path), np.empty((20, 1, 5, 7), np.uint8)
    with shard.open_reader() as reader:
        reader.read(0, out)
        os.truncate(path, path.stat().st_size * 2 // 3)
        message = user_error(lambda: reader.read(30, out))
    known = ("was written while it was read", "is a truncated gzip file", "is not a readable HDF5 file")
    assert message.startswith(str(path)) and any(one in message for one in known)


def test_floats_outside_0_to_1(tmp_path: Path) -> None:
    """Expect an error only for the images that contain them."""
    path = tmp_path / "shard"
    for value, found in ((1.5, "in 0.0"), (np.nan, "that are not finite"), (-0.5, "in -0.5 … ")):
        floats = FLOATS.copy()
        floats[40, 0, 0, 0] = value
        for dtype in ("<f4", ">f4", "f8"):
            npy_file(floats.astype(dtype))(path)
            shard = open_shard(path)
            with shard.open_reader() as reader:
                reader.read(0, np.empty((40, 1, 5, 7), np.float32))
            assert read_error(shard, 40, 5).startswith(f"{path} contains values {found}")


def test_a_chunk_that_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    hdf5_file(GREY, chunks=(10, 5, 7), compression="gzip")(path)
    with h5py.File(path) as file:
        place = file["x"].id.get_chunk_info(3).byte_offset
    path.write_bytes(flip_bit(path.read_bytes(), place + 20))
    assert "dataset 'x' lacks some of its chunks, or parts of them" in read_error(open_shard(path))


def test_chunks_across_too_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_BAND_BYTES", 20 * 35 - 1)
    path = tmp_path / "shard"
    hdf5_file(GREY, chunks=(20, 1, 1))(path)
    assert user_error(lambda: open_shard(path)).startswith(
        f"x in {path} has chunks across 20 rows, 700 bytes: store it in chunks of whole images"
    )


def test_labels_file_without_dataset_y(tmp_path: Path) -> None:
    write_idx(tmp_path / "images", GREY)
    hdf5_file(GREY)(tmp_path / "c")
    error = user_error(lambda: open_shard(tmp_path / "images", tmp_path / "c"))
    assert error.startswith(f"{tmp_path / 'c'} has no dataset y; ")


def test_patterns_and_lists_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.npy", "a.npy", "c[1].npy", ".hidden.npy", "day/x.npy", "day/more/y.npy"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("list").write_bytes("day/x.npy\r\n\n  b.npy\nc\u2028d.npy\n".encode() + b"\xff\n")
    assert find_shards(["b.npy", "a.npy"]) == [Path("b.npy"), Path("a.npy")]
    assert find_shards(["?.npy", "c[1].npy"]) == [Path("a.npy"), Path("b.npy"), Path("c[1].npy")]
    assert find_shards(["day/**/*.npy"]) == [Path("day/more/y.npy"), Path("day/x.npy")]
    assert find_shards([str(tmp_path / "[ab].npy")]) == [tmp_path / "a.npy", tmp_path / "b.npy"]
    listed = ["day/x.npy", "b.npy", "c\u2028d.npy", os.fsdecode(b"\xff")]
    assert find_shards(["@list"]) == [*map(Path, listed)], "only an end of line separates"
    assert find_shards(["missing.npy"]) == [Path("missing.npy")], "who opens it says so"
    Path("empty").touch()
    for arguments, message in (
        (["*.h5"], "*.h5 matches no file; check the pattern"),
        (["*.npy", "./a.npy"], "a.npy is named twice: name each shard once"),
        (["@empty"], "empty names no shard: write the path of one in each line"),
        (["@missing"], "missing does not exist; check the name"),
        ([""], "an empty SHARD names nothing: name a file"),
    ):
        assert user_error(partial(find_shards, arguments)) == message
