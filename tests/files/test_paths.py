"""Files that are written whole or not at all, whatever happens to the process or to the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from app.files.writing import replacing


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
