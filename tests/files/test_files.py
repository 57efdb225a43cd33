"""Test that every reader reads only regular files of limited size: it never waits for a pipe or reads a device."""

import gzip
import io
import json
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cuda import compiler
from app.files import shipped
from app.files.checks import flag, list_check, whole_number_check
from app.files.hdf5 import ReadRequest
from app.files.hdf5_process import read_untrusted
from app.files.reading import START_BYTES, open_regular, read_file, read_json, recognise_file_kind
from app.network.foreign import FORMATS
from app.network.weights import load_weights
from app.planning import tuning
from app.training.checkpoint import load_checkpoint
from data_tools import idx
from data_tools.dataset import load_files
from data_tools.fashion_mnist import SPLITS
from data_tools.idx import read_idx, write_idx
from docs.generate.figures import PROFILE, Figures
from tests.fuzz.harness import linked, time_limit
from tests.support.outside import FOLDER
from tests.support.shell import user_error

CARD = "Card"
IMAGES = FOLDER / f"{SPLITS['test'][0].name}.gz"


def read_tables(path: Path) -> object:
    linked(path.parent / "tuning" / tuning.table_file_name(CARD), path)
    return tuning.load(CARD)


READERS: dict[str, Callable[[Path], object]] = {
    "HDF5": lambda path: read_untrusted(path, None, ReadRequest(None, (), 100)),
    "weights": load_weights,
    "checkpoint": load_checkpoint,
    "images": lambda path: load_files(path, None),
    "labels": lambda path: read_idx(path, 1),
    "labels of images": lambda path: load_files(IMAGES, path),
    "tuning table": read_tables,
    "SHA256SUMS": lambda path: shipped.read_checksums(linked(path.with_name(shipped.CHECKSUMS), path)),
    "figures": lambda path: Figures(linked(path.with_name(PROFILE), path))[PROFILE],
}


def make_tebibyte_file(path: Path) -> None:
    """Make a file of a tebibyte that takes no room on the disk."""
    path.touch()
    os.truncate(path, 1 << 40)


def make_denied_file(path: Path) -> None:
    """Make a file that a fake ``os.open`` refuses, because root may read everything."""
    path.touch()


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "folder": (Path.mkdir, "is a directory"),
    "huge": (make_tebibyte_file, "1,099,511,627,776 bytes, more than the"),
    "loop": (lambda path: path.symlink_to(path), "cannot read"),
    "denied": (make_denied_file, "cannot read .*: Permission denied"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_read(reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    make, message = NO_FILES[kind]
    path, opened = tmp_path / "file", os.open
    make(path)

    def refusing(name: Any, *arguments: Any) -> int:
        if kind == "denied" and os.path.realpath(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return opened(name, *arguments)

    monkeypatch.setattr(os, "open", refusing)
    with time_limit(5):
        assert re.search(message, user_error(lambda: READERS[reader](path)))


@pytest.mark.parametrize("reader", ["HDF5", "weights", "images", "labels", "labels of images"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "does not exist; check the name"),
        ("file/below", "Not a directory"),
        ("n" * 300, "cannot read"),
        ("nul\0", "cannot read"),
    ],
)
def test_paths_without_a_file_are_refused(reader: str, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert message in user_error(lambda: READERS[reader](tmp_path / name))


def test_cached_kernels_must_be_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with time_limit(5):
        assert [compiler._read_cached_cubin(tmp_path / name) for name in ("pipe", "zeros", "none")] == [None] * 3


def test_a_file_may_become_a_pipe_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    status = file.stat()
    monkeypatch.setattr(Path, "stat", lambda self: status)
    with time_limit(5), pytest.raises(UserError, match="is not a regular file"):
        open_regular(pipe, 9)


def test_small_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"[1]")
    assert read_file(path, 3) == b"[1]" and read_json(path, list_check(whole_number_check(1, 2)), "") == [1]
    with pytest.raises(UserError, match="has 3 bytes, more than the 2 that are read; split it"):
        read_file(path, 2)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"{'a': 1}"])
def test_bad_json_gives_a_one_line_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file is not JSON \((?!.*not JSON).*\): make it again$"):
        read_json(path, list_check(flag), "make it again")


# --- files of a wrong kind


def bytes_written(write: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def zip_with_member(member: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member, "content")
    return stream.getvalue()


SAFETENSORS = json.dumps({"conv1": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FILES = {
    "a PNG picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(30),
    "a JPEG picture": b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(30),
    "a GIF picture": b"GIF89a" + bytes(30),
    "a WebP picture": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(30),
    "a BMP picture": b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0" + bytes(30),
    "a TIFF picture": b"II*\0\x08\0\0\0" + bytes(30),
    "a PyTorch file (.pt, .pth)": zip_with_member("model/data.pkl"),
    "a program of torch.export (.pt2)": zip_with_member("model/data/weights/weight_0"),
    "a Python pickle, as PyTorch's old .pt and .pth files are": pickle.dumps({"conv1": [1.0]}, protocol=2),
    "an ONNX model": b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(30),
    "a NumPy array (.npy)": bytes_written(lambda stream: np.save(stream, np.zeros(3))),
    "a NumPy archive (.npz)": bytes_written(lambda stream: np.savez(stream, x=np.zeros(3))),
    "a safetensors file": len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4),
    "a list of MXNet's arrays": struct.pack("<3Q", 0x112, 0, 1) + bytes(30),
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "a table in text (CSV)": b"label,pixel1,pixel2\n9,0,0\n",
    "a JSON file": b'{"x": [0, 1]}',
    "a web page": b"\n<!DOCTYPE html><title>404</title>",
    "a text file": "Größe: 28\n".encode(),
    "a zip archive": zip_with_member("images.idx"),
}


@pytest.mark.parametrize("kind", FILES)
def test_errors_name_the_kind_of_a_wrong_file(kind: str, tmp_path: Path) -> None:
    path, zipped = tmp_path / "given.h5", tmp_path / "zipped"
    path.write_bytes(FILES[kind])
    zipped.write_bytes(gzip.compress(FILES[kind]))
    known = kind in [row.kind for row in FORMATS]
    for read, remedy in (
        (lambda: load_files(path, None), "not an IDX file; store the images or labels as IDX, or as x and y in HDF5"),
        (lambda: read_idx(path, 1), "not an IDX file; store"),
        (lambda: load_weights(path), f"not HDF5 weights; {'make weights' if known else 'store its arrays'}"),
    ):
        assert f"given.h5 is {kind}, {remedy}" in user_error(read)
    assert f"zipped is {kind}, not an IDX file" in user_error(lambda: read_idx(zipped, 3))


def test_errors_for_confused_idx_and_hdf5_files_name_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_idx(path, np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(UserError, match="file is an IDX file, not HDF5 weights"):
        load_weights(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    with pytest.raises(UserError, match="file is an HDF5 file, not an IDX file"):
        read_idx(path, 1)


def test_unknown_content_has_no_kind() -> None:
    rng = np.random.default_rng(3)
    assert [recognise_file_kind(start) for start in (b"", b" \n", bytes(START_BYTES))] == [None] * 3
    found = [recognise_file_kind(rng.bytes(START_BYTES)) for _ in range(3000)]
    assert sum(kind is not None for kind in found) <= 2


def test_the_remedy_for_unknown_content_follows_from_the_ending(tmp_path: Path) -> None:
    for name, told in (("file", "is not an HDF5 file"), ("a.npz", "is not an HDF5 file"), ("a.BIN", "make weights of")):
        (tmp_path / name).write_bytes(bytes(600))
        assert told in user_error(partial(load_weights, tmp_path / name))


def test_text_may_end_within_a_character() -> None:
    assert recognise_file_kind(("x" + "ä" * START_BYTES).encode()[:START_BYTES]) == "a text file"


@pytest.mark.parametrize("images", [2740000, 2**31])
def test_errors_for_too_large_files_say_to_split_them(images: int, tmp_path: Path) -> None:
    """The header is not taken for that of a damaged file. The files take no room on the disk."""
    path = tmp_path / "images"
    with path.open("wb") as file:
        file.write(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (images, 28, 28)))
        file.truncate(16 + images * 28 * 28)
    error = user_error(lambda: load_files(path, None))
    assert re.search(r"bytes, more than the 2,14\d,\d{3},\d{3} that are read; split it .*, or .* classify FILE", error)
    assert "fresh copy" not in error and idx.MAX_BYTES == 2**31
