"""Test that files are written completely or not at all, whatever happens to the process or to the machine.

A later run that writes to the same folder removes what a killed process left there, and nothing else.
"""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.cuda import compiler
from app.files import shipped
from app.files.writing import STALE_SECONDS, replace_atomically, temporary_path_beside
from app.kernels.problems import ConvProblem
from app.network.definitions import MLP
from app.network.weights import save_weights
from app.planning import tuning
from app.planning.tuning import TunedResult
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_graph
from tests.support.shell import ROOT, python
from tests.support.tiny_fashion import IMAGES, names
from tests.support.training_for_tests import unfinished

PROBLEM = ConvProblem(1, 28, 28, 20, 5)
LONG_AGO = time.time() - STALE_SECONDS - 60
WRITER = """
import sys, time
from pathlib import Path
from app.files.writing import replace_atomically, temporary_path_beside
with replace_atomically(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    scratch = temporary_path_beside(temporary)
    scratch.mkdir()
    (scratch / "lists").mkdir()
    print("written", flush=True)
    time.sleep(60)
"""


def test_content_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with replace_atomically(tmp_path / "file") as temporary:
        temporary.write_bytes(b"content")
    written, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert steps == [("content", written), ("name", written), ("folder", folder)]


def test_folders_need_not_support_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with replace_atomically(tmp_path / "file") as temporary:
        temporary.write_bytes(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_replaced_file_keeps_its_permissions_and_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    file.chmod(0o600)
    link.symlink_to("file")
    with replace_atomically(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file", "link"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_pipes_and_folders_are_never_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "target"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    if kind.startswith("link"):
        path = tmp_path / "link"
        path.symlink_to("target")
    before = path.lstat()
    with pytest.raises(UserError, match=r"target|link"), replace_atomically(path) as temporary:
        temporary.write_bytes(b"content")
    assert path.lstat().st_mode == before.st_mode and len(names(tmp_path)) == 1 + kind.startswith("link")


KERNEL = compiler.KERNEL_DIR / "pointwise" / "argmax_01_rows.cu"
# Functions that write a file into a folder, which is also the cache; a number determines the content.
WRITERS: dict[str, Callable[[Path, int], object]] = {
    "weights": lambda folder, number: save_weights(folder / "w.h5", random_graph(MLP, number).parameters, network=MLP),
    "checksums": lambda folder, number: shipped.record_checksum(folder / f"file_{number}"),
    "checkpoint": lambda folder, number: unfinished(folder / "c", loss=number),
    "IDX": lambda folder, number: write_idx(folder / "images", np.full((9, 5, 5), number, np.uint8)),
    "gzipped IDX": lambda folder, number: write_idx(folder / "images.gz", np.full((9, 5, 5), number, np.uint8)),
    "kernel": lambda folder, number: compiler.compile_kernel(KERNEL, {"NUMBER": number}, "sm_80"),
    "tuning table": lambda _, number: tuning.store("card", {PROBLEM: {"direct": TunedResult({}, 0.5 * number, 100)}}),
}


def read_all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["Ctrl-C", "full"])
@pytest.mark.parametrize("moment", [(os, "fsync"), (Path, "replace")], ids=["before its name", "its name"])
@pytest.mark.parametrize("writer", WRITERS)
def test_failed_writes_leave_the_old_file(
    writer: str, moment: tuple[object, str], error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if writer == "kernel":
        pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_compile", lambda *_: (b"machine code", ""))
    for number in (1, 2):
        (tmp_path / f"file_{number}").write_bytes(b"content")
    WRITERS[writer](tmp_path, 1)
    before = read_all_files(tmp_path)
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, UserError)):
        patch.setattr(*moment, Mock(side_effect=error))
        WRITERS[writer](tmp_path, 2)
    assert read_all_files(tmp_path) == before
    WRITERS[writer](tmp_path, 2)
    assert read_all_files(tmp_path) != before


def test_a_full_disk_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No space left"), replace_atomically(tmp_path / "file") as temporary:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []


# --- files that a killed process left


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has written half of a file, and a folder, and waits."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "result")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        yield process
        process.kill()


def make_old(folder: Path) -> list[Path]:
    for path in (found := sorted(folder.iterdir())):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    return found


def write_again(folder: Path) -> list[str]:
    """Write a file from a new process, which looks for abandoned files; return the names in the folder."""
    script = "import sys; from pathlib import Path; from app.files.writing import replace_atomically\n"
    script += "with replace_atomically(Path(sys.argv[1])) as temporary: temporary.write_bytes(b'whole')"
    python(script, folder / "result", check=True)
    return sorted(path.name for path in folder.iterdir())


def test_old_files_of_killed_processes_are_removed(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    left = make_old(tmp_path)
    assert len(left) == 2
    assert write_again(tmp_path) == [*(path.name for path in left), "result"], "its owner is at work"
    writer.kill()
    writer.wait()
    for path in left:
        os.utime(path)
    assert write_again(tmp_path) == [*(path.name for path in left), "result"], "it is fresh"
    make_old(tmp_path)
    assert write_again(tmp_path) == ["result"]
    assert (tmp_path / "result").read_bytes() == b"whole"


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    ours = temporary_path_beside(tmp_path / "x").name
    ended = ours.replace(str(os.getpid()), "4194304")  # above all process numbers
    names = [".0123456789abcdef.part", f"{ours[1:]}", f"{ended}s", f"a{ended}", ended.replace(".part", ".h5"), "b.part"]
    names += [ended.replace("-4194304-", "-0-"), ended.replace("-4194304-", "-44194304-"), ended.replace("-4", "--4")]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ended).symlink_to("b.part")
    make_old(tmp_path)
    assert write_again(tmp_path) == sorted([*names, "result"]), "a link goes, what it points to stays"


def test_unfinished_files_contain_the_process_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Path, "replace", lambda self, target: seen.append(self.name))
    write_idx(tmp_path / "images", IMAGES)
    with replace_atomically(tmp_path / "other") as temporary:
        temporary.touch()
    assert len(seen) == 2 and all(name.startswith(f".lenet5-inference-{os.getpid()}-") for name in seen)
