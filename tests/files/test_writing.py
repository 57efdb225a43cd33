"""Files that are written whole or not at all, whatever happens to the process or to the machine."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from app.errors import UserError
from app.files.writing import replacing
from tests.support.tiny_fashion import names


def test_content_is_on_the_disk_before_its_name_and_the_name_before_we_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        steps.append(("folder" if stat.S_ISDIR(status.st_mode) else "content", status.st_ino))
        sync(descriptor)

    def rename(path: Path, target: Any) -> Path:
        steps.append(("name", path.stat().st_ino))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"content")
    written, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert steps == [("content", written), ("name", written), ("folder", folder)]


def test_a_file_system_whose_folders_cannot_be_flushed_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_replaced_file_keeps_its_permissions_and_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    file.chmod(0o600)
    link.symlink_to("file")
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file", "link"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_what_is_no_file_is_never_replaced_by_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "target"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    if kind.startswith("link"):
        path = tmp_path / "link"
        path.symlink_to("target")
    before = path.lstat()
    with pytest.raises(UserError, match=r"target|link"), replacing(path) as temporary:
        temporary.write_bytes(b"content")
    assert path.lstat().st_mode == before.st_mode and len(names(tmp_path)) == 1 + kind.startswith("link")


def test_full_disk_is_not_taken_for_a_bad_mirror(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No space left"), replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
