"""Test broken NPZ and NPY files and zip bombs: each gives a one-line error and takes little memory."""

import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.checks import BadValueError
from app.images.predict.inputs import read_array_file
from app.interchange.npz import MAX_ARRAYS, read_array, read_npz
from app.interchange.state_dict import read_state_dict
from tests.interchange.test_named_arrays import import_bytes
from tests.support.foreign_files import npz_file
from tests.support.keras_files import declaring, zipped
from tests.support.shell import user_error

ZEROS = bytes(16 << 20)  # compressed, a thousandth of this size


def npy_head(shape: object, dtype: object = "<f4") -> bytes:
    """Return the header of an NPY file, also with values that NumPy would not write."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


ONE = npy_head((900,), "|u1")
BAD_NPZ: dict[str, tuple[Callable[[], bytes], str]] = {  # fault → function that returns the file, message
    "bomb": (lambda: declaring({"x.npy": npy_head((1 << 27,))}, "x.npy", 1 << 29), "unpacks to 536,8.* bytes; at most"),
    "too many arrays": (lambda: zipped({f"{i}.npy": b"" for i in range(MAX_ARRAYS + 1)}), "holds 10,001 arrays"),
    "a huge shape": (lambda: zipped({"a.npy": npy_head((10**12,)) + bytes(8)}), "'a' does not have the bytes"),
    "a negative shape": (lambda: zipped({"a.npy": npy_head((-1, -1)) + bytes(4)}), "'a' does not have the bytes"),
    "no array": (lambda: zipped({"a.npy": b"hello"}), "'a' is no array"),
    "truncated": (lambda: npz_file({"a": np.ones(3, np.float32)})[:-9], "is no zip archive"),
}


@pytest.mark.parametrize("fault", BAD_NPZ)
def test_a_bad_npz_file_gives_a_one_line_error(fault: str, tmp_path: Path) -> None:
    content, message = BAD_NPZ[fault]
    assert re.search(message, user_error(lambda: import_bytes(tmp_path, content())))


# Name → type and shape that the NPY file declares, number of bytes that follow.
ODD: dict[str, tuple[object, object, int]] = {
    "no bytes": ("|S0", (3,), 0),
    "no characters": ("<U0", (3,), 0),
    "nothing": ("|V0", (3,), 0),
    "one of nothing": ("|S0", (), 0),
    "no fields": ([], (3,), 0),
    "fields": ([("a", "<f4")], (2,), 8),
    "pairs": (("<f4", (2,)), (2,), 16),
    "times": ("<M8[s]", (2,), 16),
    "a truth as length": ("<f4", (True, 2), 8),
    "70 dimensions": ("<f4", (1,) * 70, 4),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_type_or_shape_gives_a_one_line_error(case: str) -> None:
    dtype, shape, count = ODD[case]
    with pytest.raises(BadValueError, match=r"^x (is .*, of no numbers; store|does not have the bytes)") as error:
        read_array("x", npy_head(shape, dtype) + bytes(count))
    assert str(error.value).isprintable()


def read_as_images(content: bytes, folder: Path) -> None:
    (folder / "images.npz").write_bytes(content)
    assert read_array_file(folder / "images.npz") is not None


BOMBS: dict[str, tuple[Callable[[bytes, Path], object], Callable[[], bytes], str]] = {
    "a shape that no image has": (
        read_as_images,
        lambda: zipped({"x.npy": npy_head((len(ZEROS),), "|u1") + ZEROS}, packed=True),
        "has shape",
    ),
    "other arrays beside": (
        read_as_images,
        lambda: zipped(
            {"x.npy": npy_head((2, 5), "|i2") + bytes(20), "y.npy": npy_head((len(ZEROS),), "|u1") + ZEROS}, packed=True
        ),
        "is int16",
    ),
    "more than it declares": (
        lambda content, _: read_npz(content),
        lambda: declaring({"x.npy": ONE + ZEROS}, "x.npy", len(ONE) + 900),
        "Bad CRC-32",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_zip_bomb_is_refused_before_it_is_unpacked(case: str, tmp_path: Path) -> None:
    read, packed, message = BOMBS[case]
    content = packed()
    tracemalloc.start()
    try:
        with pytest.raises((UserError, BadValueError), match=message):
            read(content, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_as_state_dict_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"unpacks to .* bytes; at most"):
        read_state_dict(declaring({"data/0": b""}, "data/0", 1 << 29))
