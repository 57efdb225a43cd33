"""Test the strict HDF5 reader: what it reads and what it refuses; all damage gives a UserError."""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.files.hdf5 import ReadRequest, build_hdf5_bytes, printable_line
from app.files.hdf5_process import read_untrusted
from app.files.hdf5_strict import StrictFile, open_strict
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.shell import user_error

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


@contextmanager
def open_strictly(path: Path, in_memory: bool = False) -> Iterator[StrictFile]:
    with path.open("rb") as stream, open_strict(path, stream.read() if in_memory else stream.fileno()) as file:
        yield file


def read_strictly(path: Path, in_memory: bool = False, name: str = "x") -> np.ndarray:
    with open_strictly(path, in_memory) as file:
        return file.read_array(name)


def _add_soft_link(file: h5py.File, directory: Path) -> None:
    file["inner"] = VALUES
    file["x"] = h5py.SoftLink("/inner")


def _add_external_link(file: h5py.File, directory: Path) -> None:
    file["x"] = h5py.ExternalLink(str(write_hdf5(directory / "other.h5", {"x": VALUES})), "/x")


def _add_external_storage(file: h5py.File, directory: Path) -> None:
    (directory / "secret").write_bytes(VALUES.tobytes())
    file.create_dataset("x", VALUES.shape, "f4", external=[(str(directory / "secret"), 0, VALUES.nbytes)])


def _add_virtual_dataset(file: h5py.File, directory: Path) -> None:
    other = write_hdf5(directory / "other.h5", {"x": VALUES})
    layout = h5py.VirtualLayout(VALUES.shape, "f4")
    layout[:] = h5py.VirtualSource(str(other), "x", VALUES.shape)
    file.create_virtual_dataset("x", layout)


def _add_oversized_chunk(file: h5py.File, directory: Path) -> None:
    dataset = file.create_dataset("x", (3,), "f4", maxshape=(None,), chunks=(2**28 + 1,), compression="gzip")
    dataset.id.write_direct_chunk((0,), b"123456789")


def _add_chunk_of_wrong_size(file: h5py.File, directory: Path) -> None:
    dataset = file.create_dataset("x", (9999,), "u1", chunks=(9999,), compression="gzip")
    dataset.id.write_direct_chunk((0,), bytes(4321))  # test_reading_refuses_datasets increases this number


def _add_doubly_zipped(file: h5py.File, directory: Path) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk((12,))
    layout.set_deflate(9)
    layout.set_deflate(9)
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((12,)), layout)


def _dataset_adder(**options: object) -> Callable[[h5py.File, Path], object]:
    return lambda file, directory: file.create_dataset("x", **options)


REFUSED: dict[str, tuple[Callable[[h5py.File, Path], object], str]] = {
    "soft link": (_add_soft_link, "soft or external link"),
    "external link": (_add_external_link, "soft or external link"),
    "external storage": (_add_external_storage, "another file; store it as plain numbers in this file"),
    "virtual": (_add_virtual_dataset, "virtual"),
    "group": (lambda file, _: file.create_group("x"), "group"),
    "named type": (lambda file, _: file.__setitem__("x", np.dtype("f4")), "type"),
    "missing": (lambda file, _: None, "missing"),
    "petabytes": (
        _dataset_adder(shape=(2**50,), dtype="f4"),
        "declares 4,503,599,627,370,496 bytes, more than the 1,073,741,824 allowed; split the file or store less in it",
    ),
    "petabytes in chunks": (_dataset_adder(shape=(2**50,), dtype="f4", chunks=(1024,)), "declares 4,503,599"),
    "never written": (_dataset_adder(shape=(1000,), dtype="f4"), "stores 0; write it whole"),
    "never written chunks": (_dataset_adder(shape=(1000,), dtype="f4", compression="gzip"), "lacks some of its chunks"),
    "chunk of a gigabyte": (_add_oversized_chunk, "chunks of more than 1,073,741,824 bytes; store it in smaller ones"),
    "chunks longer than the file": (_add_chunk_of_wrong_size, "get a fresh copy"),
    "gzip in gzip": (_add_doubly_zipped, "filters"),
    "other filter": (_dataset_adder(data=np.arange(100), scaleoffset=0), "filters"),
    "no dataspace": (lambda file, _: file.__setitem__("x", h5py.Empty("f4")), "empty"),
    "fixed strings": (_dataset_adder(data=np.array([b"ab", b"cd"])), "other than integers or floats"),
    "variable length": (_dataset_adder(shape=(2,), dtype=h5py.vlen_dtype("f4")), "other than integers or floats"),
    "compound": (_dataset_adder(data=np.zeros(3, [("a", "f4"), ("b", "i4")])), "other than integers or floats"),
    "booleans": (_dataset_adder(data=np.array([True, False])), "other than integers or floats"),
    "long double": (_dataset_adder(data=np.zeros(2, np.longdouble)), "other than integers or floats"),
}


@pytest.mark.parametrize("in_memory", [False, True], ids=["path", "image"])
@pytest.mark.parametrize("case", REFUSED)
def test_reading_refuses_datasets(case: str, in_memory: bool, tmp_path: Path) -> None:
    build, message = REFUSED[case]
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        build(file, tmp_path)
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 4321), struct.pack("<I", 900_000)))
    error = user_error(lambda: read_strictly(path, in_memory))
    assert error.startswith(str(path)) and message in error.removeprefix(str(path))  # the path has the case in it


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an HDF5 file"),
        (b"<!DOCTYPE html>", "not an HDF5 file"),
        (build_hdf5_bytes({"x": VALUES}, {})[:-1], "not a readable HDF5 file"),
    ],
    ids=["empty", "text", "one byte short"],
)
@pytest.mark.parametrize("in_memory", [False, True], ids=["path", "image"])
def test_opening_refuses_content(content: bytes, message: str, in_memory: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_untrusted(path, path.read_bytes() if in_memory else None, ReadRequest(None, (), 100))


def test_names_in_the_root_are_listed(tmp_path: Path) -> None:
    """Groups are left out, but not links: an error about a requested link says why it is refused."""
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["x"] = VALUES
        file["alias"] = file["x"]
        file["group/y"] = VALUES
        file["soft"] = h5py.SoftLink("/group")
        file["outside"] = h5py.ExternalLink("absent.h5", "/x")
    with open_strictly(tmp_path / "file.h5") as opened:
        assert opened.list_names() == ("alias", "outside", "soft", "x")
        np.testing.assert_array_equal(opened.read_array("alias"), VALUES)
        for path in ("group/y", "soft/y", "/", "/x", "."):
            with pytest.raises(UserError, match="is missing"):
                opened.read_array(path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (2, 3)},
        {"chunks": (2, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (2, 3), "compression": "lzf"},
        {"chunks": (50, 50), "maxshape": (None, None), "compression": "gzip"},
    ],
    ids=["contiguous", "chunks", "gzip", "lzf", "chunk beyond the shape"],
)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f8", "|u1", ">i2", "<i8"])
def test_datasets_of_every_type_are_read(dtype: str, options: dict[str, object], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("x", data=VALUES.astype(dtype), **options)
    array = read_strictly(tmp_path / "file.h5")
    np.testing.assert_array_equal(array, VALUES.astype(dtype))
    assert array.dtype == np.dtype(dtype).newbyteorder("=")
    assert array.flags.c_contiguous


@pytest.mark.parametrize("shape", [(), (0, 28, 28)])
def test_scalars_and_empty_arrays_are_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "file.h5", {"x": np.ones(shape)})
    np.testing.assert_array_equal(read_strictly(path), np.ones(shape), strict=True)


def test_arrays_above_max_bytes_are_refused(tmp_path: Path) -> None:
    with open_strictly(write_hdf5(tmp_path / "file.h5", {"x": VALUES})) as file:
        assert file.read_array("x", max_bytes=48).nbytes == 48
        with pytest.raises(UserError, match="48 bytes, more than the 47"):
            file.read_array("x", max_bytes=47)


def test_attributes_are_read(tmp_path: Path) -> None:
    values = {"text": "Ünïcode", "integer": np.array(7, ">i2"), "number": 0.25, "list": np.array([1, 2], ">i4")}
    with open_strictly(write_hdf5(tmp_path / "file.h5", {}, **values)) as opened:
        assert opened.read_attribute("text") == "Ünïcode"
        assert repr([opened.read_attribute("integer"), opened.read_attribute("number")]) == "[7, 0.25]"
        assert opened.read_attribute("list") == [1, 2] and opened.read_attribute("absent") is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * 65_537, "64 KiB"),
        (np.bytes_(b"\xff"), "utf-8"),
        (["a", "b"], "neither"),
        (True, "neither"),
        (h5py.Empty("f4"), "neither"),
        (np.zeros(8193), "64 KiB"),
    ],
)
def test_other_attributes_are_refused(value: object, message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w", libver="latest") as file:
        file.attrs["a"] = value
    with open_strictly(tmp_path / "file.h5") as opened, pytest.raises(UserError, match=message):
        opened.read_attribute("a")


def test_errors_of_the_caller_pass_unchanged(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "file.h5", {"x": VALUES})
    with pytest.raises(ValueError, match="mine"), open_strictly(path):
        raise ValueError("mine")


def test_long_texts_are_cut() -> None:
    assert [printable_line(text, 5) for text in ("a" * 5, "a" * 6, "a\nbcd")] == ["a" * 5, "aaaa…", "a\\nb…"]


def test_two_files_in_memory_may_be_open() -> None:
    first, second = (build_hdf5_bytes({"x": VALUES + i}, {}) for i in range(2))
    with open_strict(Path("f.h5"), first) as a, open_strict(Path("f.h5"), second) as b:
        assert a.read_array("x")[0, 0] == 0
        assert b.read_array("x")[0, 0] == 1


def test_written_files_are_reproducible() -> None:
    arrays = {"b": VALUES, "a": VALUES[0]}
    attributes: dict[str, str | int | float] = {"text": "Ünïcode", "empty": "", "number": 0.5}
    first = build_hdf5_bytes(arrays, attributes)
    time.sleep(1.1)  # time stamps in HDF5 count seconds
    assert build_hdf5_bytes(dict(reversed(arrays.items())), dict(reversed(attributes.items()))) == first
    with open_strict(Path("f.h5"), first) as file:
        assert [file.read_attribute(name) for name in attributes] == list(attributes.values())
