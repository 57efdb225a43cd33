"""What is given in the place of images, labels or weights is recognised and named, with the remedy."""

import gzip
import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.errors import UserError
from app.files.formats import START_BYTES, recognise
from app.network.weights import load_weights
from data_tools import idx
from data_tools.dataset import load_files
from data_tools.idx import read_idx, write_idx
from tests.support.shell import user_error


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def zipped(member: str) -> bytes:
    def write(stream: io.BytesIO) -> None:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(member, "content")

    return written(write)


SAFETENSORS = json.dumps({"conv1": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FILES = {
    "a PNG picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(30),
    "a JPEG picture": b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(30),
    "a GIF picture": b"GIF89a" + bytes(30),
    "a WebP picture": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(30),
    "a BMP picture": b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0" + bytes(30),
    "a TIFF picture": b"II*\0\x08\0\0\0" + bytes(30),
    "a PyTorch file (.pt, .pth)": zipped("model/data.pkl"),
    "a Python pickle, as PyTorch's old .pt and .pth files are": pickle.dumps({"conv1": [1.0]}, protocol=2),
    "an ONNX model": b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(30),
    "a NumPy array (.npy)": written(lambda stream: np.save(stream, np.zeros(3))),
    "a NumPy archive (.npz)": written(lambda stream: np.savez(stream, x=np.zeros(3))),
    "a safetensors file": len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4),
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "a table in text (CSV)": b"label,pixel1,pixel2\n9,0,0\n",
    "a JSON file": b'{"x": [0, 1]}',
    "a web page": b"\n<!DOCTYPE html><title>404</title>",
    "a text file": "Größe: 28\n".encode(),
    "a zip archive": zipped("images.idx"),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_is_named_whatever_it_is_given_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "given.h5"
    path.write_bytes(FILES[kind])
    for read, remedy in (
        (lambda: load_files(path, None), "not an IDX file; store the images or labels as IDX, or as x and y in HDF5"),
        (lambda: read_idx(path, 1), "not an IDX file; store"),
        (lambda: load_weights(path), "not HDF5 weights; store its arrays"),
    ):
        assert f"given.h5 is {kind}, {remedy}" in user_error(read)


@pytest.mark.parametrize("kind", FILES)
def test_it_is_named_when_it_is_gzipped(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(FILES[kind]))
    assert f"images.gz is {kind}, not an IDX file" in user_error(lambda: read_idx(path, 3))


def test_idx_and_hdf5_in_each_other_s_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_idx(path, np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(UserError, match="file is an IDX file, not HDF5 weights"):
        load_weights(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    with pytest.raises(UserError, match="file is an HDF5 file, not an IDX file"):
        read_idx(path, 1)


def test_what_is_unknown_is_not_guessed() -> None:
    rng = np.random.default_rng(3)
    assert recognise(b"") is None and recognise(b" \n") is None and recognise(bytes(START_BYTES)) is None
    found = [recognise(rng.bytes(START_BYTES)) for _ in range(3000)]
    assert sum(kind is not None for kind in found) <= 2


def test_a_character_cut_at_the_end_is_text() -> None:
    assert recognise(("x" + "ä" * START_BYTES).encode()[:START_BYTES]) == "a text file"


@pytest.mark.parametrize("images", [2740000, 2**31])
def test_images_beyond_the_limit_are_to_be_split(images: int, tmp_path: Path) -> None:
    """A good file that is too large is not told from damaged ones by its header; it takes no disk here."""
    path = tmp_path / "images"
    with path.open("wb") as file:
        file.write(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (images, 28, 28)))
        file.truncate(16 + images * 28 * 28)
    error = user_error(lambda: load_files(path, None))
    assert re.search(r"bytes, more than the 2,14\d,\d{3},\d{3} that are read; split it", error)
    assert "fresh copy" not in error and idx.MAX_BYTES == 2**31
