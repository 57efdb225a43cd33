"""Every reader takes regular files of a limited size only: no pipe is waited for, no device is read to its end."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cuda import compiler
from app.errors import UserError
from app.files.checks import flag, items, whole
from app.files.hdf5 import Wanted, read_untrusted
from app.files.reading import open_regular, read_file, read_json
from app.network import shipped
from app.network.weights import load_weights
from app.planning import tuning
from app.training.checkpoint import load_checkpoint
from data_tools.dataset import load_files
from data_tools.fashion_mnist import SPLITS
from data_tools.idx import read_idx
from docs.generate.figures import PROFILE, Figures
from tests.fuzz.harness import linked, time_limit
from tests.support.outside import FOLDER
from tests.support.shell import user_error

CARD = "Card"
IMAGES = FOLDER / f"{SPLITS['test'][0].name}.gz"


def tables(path: Path) -> object:
    linked(path.parent / "tuning" / tuning.file_name(CARD), path)
    return tuning.load(CARD)


READERS: dict[str, Callable[[Path], object]] = {
    "HDF5": lambda path: read_untrusted(path, None, Wanted(None, (), 100)),
    "weights": load_weights,
    "checkpoint": load_checkpoint,
    "images": lambda path: load_files(path, None),
    "labels": lambda path: read_idx(path, 1),
    "labels of images": lambda path: load_files(IMAGES, path),
    "tuning table": tables,
    "SHA256SUMS": lambda path: shipped.checksums(linked(path.with_name(shipped.CHECKSUMS), path)),
    "figures": lambda path: Figures(linked(path.with_name(PROFILE), path))[PROFILE],
}


def sparse(path: Path) -> None:
    """A file of a tebibyte which takes no room on the disk."""
    path.touch()
    os.truncate(path, 1 << 40)


def denied(path: Path) -> None:
    """A file that ``os.open`` does not open: root may read everything."""
    path.touch()


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "folder": (Path.mkdir, "is a directory"),
    "huge": (sparse, "1,099,511,627,776 bytes, more than the"),
    "loop": (lambda path: path.symlink_to(path), "cannot read"),
    "denied": (denied, "cannot read .*: Permission denied"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_of_a_limited_size(
    reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_names_that_lead_to_no_file(reader: str, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert message in user_error(lambda: READERS[reader](tmp_path / name))


def test_a_cached_kernel_that_is_no_file_is_compiled_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with time_limit(5):
        assert [compiler._read_cached(tmp_path / name) for name in ("pipe", "zeros", "none")] == [None] * 3


def test_a_pipe_that_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at need not be what is opened."""
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    status = file.stat()
    monkeypatch.setattr(Path, "stat", lambda self: status)
    with time_limit(5), pytest.raises(UserError, match="is not a regular file"):
        open_regular(pipe, 9)


def test_what_is_there_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"[1]")
    assert read_file(path, 3) == b"[1]" and read_json(path, items(whole(1, 2)), "") == [1]
    with pytest.raises(UserError, match="has 3 bytes, more than the 2 that are read; split it"):
        read_file(path, 2)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"{'a': 1}"])
def test_what_is_no_json_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file is no JSON \(.*\): make it again$"):
        read_json(path, items(flag), "make it again")
