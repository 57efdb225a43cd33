"""What a killed process was writing goes at a later run that writes to the same folder; nothing else does."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.files.writing import STALE_SECONDS, replacing, temporary_beside
from data_tools.idx import write_idx
from tests.support.shell import ROOT, python
from tests.support.tiny_fashion import IMAGES

LONG_AGO = time.time() - STALE_SECONDS - 60
WRITER = """
import sys, time
from pathlib import Path
from app.files.writing import replacing, temporary_beside
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    scratch = temporary_beside(temporary)
    scratch.mkdir()
    (scratch / "lists").mkdir()
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written half of a file, and a folder, and does not go on."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "result")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        yield process
        process.kill()


def age(folder: Path) -> list[Path]:
    for path in (found := sorted(folder.iterdir())):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    return found


def write_again(folder: Path) -> list[str]:
    """From a process that has not looked into the folder yet; returns the names that are there then."""
    script = "import sys; from pathlib import Path; from app.files.writing import replacing\n"
    script += "with replacing(Path(sys.argv[1])) as temporary: temporary.write_bytes(b'whole')"
    python(script, folder / "result", check=True)
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_removed_once_it_is_old(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    left = age(tmp_path)
    assert len(left) == 2
    assert write_again(tmp_path) == [*(path.name for path in left), "result"], "its owner is at work"
    writer.kill()
    writer.wait()
    for path in left:
        os.utime(path)
    assert write_again(tmp_path) == [*(path.name for path in left), "result"], "it is fresh"
    age(tmp_path)
    assert write_again(tmp_path) == ["result"]
    assert (tmp_path / "result").read_bytes() == b"whole"


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    ours = temporary_beside(tmp_path / "x").name
    ended = ours.replace(str(os.getpid()), "4194304")  # more than any process's number
    names = [".0123456789abcdef.part", f"{ours[1:]}", f"{ended}s", f"a{ended}", ended.replace(".part", ".h5"), "b.part"]
    names += [ended.replace("-4194304-", "-0-"), ended.replace("-4194304-", "-44194304-"), ended.replace("-4", "--4")]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ended).symlink_to("b.part")
    age(tmp_path)
    assert write_again(tmp_path) == sorted([*names, "result"]), "a link goes, what it points to stays"


def test_every_writer_names_its_unfinished_files_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Path, "replace", lambda self, target: seen.append(self.name))
    write_idx(tmp_path / "images", IMAGES)
    with replacing(tmp_path / "other") as temporary:
        temporary.touch()
    assert len(seen) == 2 and all(name.startswith(f".lenet5-inference-{os.getpid()}-") for name in seen)
