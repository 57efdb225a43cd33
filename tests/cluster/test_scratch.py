"""The folder of a local cluster, and those that killed runs left."""

import os
from pathlib import Path

import pytest

from app.cluster.local import PREFIX, scratch_folder


def test_folders_of_killed_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that are in use, may be so soon, or are of others."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, young, other, link = (tmp_path / name for name in (f"{PREFIX}left", f"{PREFIX}young", "other", f"{PREFIX}x"))
    for folder in (left, young, other):
        (folder / "dask-scratch-space").mkdir(parents=True)
    link.symlink_to(other)
    pipe = tmp_path / f"{PREFIX}pipe"  # another user's, maybe: to open it would wait for a writer
    os.mkfifo(pipe)
    with scratch_folder() as used:
        for path in (left, other, link, pipe, Path(used)):
            os.utime(path, (0, 0), follow_symlinks=False)
        with scratch_folder() as mine:
            assert {*tmp_path.iterdir()} == {young, other, link, pipe, Path(used), Path(mine)}
    assert {*tmp_path.iterdir()} == {young, other, link, pipe} and [*other.iterdir()]
