"""Test ``main.py cache``: what it lists, and that it removes nothing but what is ours and made again."""

import json
import os
import time
from pathlib import Path

import pytest

from app.cli import main
from app.files.writing import STALE_SECONDS
from app.terminal.text import WIDTH, format_age, format_bytes
from app.tools import cache
from tests.support.schemas import mistakes
from tests.support.shell import Refuses, listing

OURS = (f"kernels/{'0' * 64}.cubin", f"kernels/{'f' * 64}.cubin", "fashion-mnist/t10k-labels-idx1-ubyte.gz")
ENDED = 4_190_000  # above every process number of Linux: no process has it
ABANDONED = f"kernels/.lenet5-inference-{ENDED}-{'0' * 16}.part"
OTHERS = (
    "kernels/notes.txt",
    "kernels/1.cubin",
    "fashion-mnist/mine.gz",
    "tuning/some_card.json",
    "peers/some_card.json",
    "learn/progress.json",
    "mine",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with files of all kinds, of 1,000 bytes each, an hour old, and others' among them."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    for name in (*OURS, ABANDONED, *OTHERS):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - STALE_SECONDS * 2,) * 2)
    (tmp_path / "outside").write_text("of the user")
    (tmp_path / "cache" / f"kernels/{'a' * 64}.cubin").symlink_to(tmp_path / "outside")
    return tmp_path / "cache"


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    assert main(["cache", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not mistakes(document)
    assert [(kind["kind"], kind["files"], kind["bytes"]) for kind in document["kinds"]] == [
        ("compiled kernels", 3, 3000),
        ("Fashion-MNIST", 1, 1000),
        ("tuning tables", 1, 1000),
        ("peer settings", 1, 1000),
        ("learn progress", 1, 1000),
    ]
    assert all(7190 < kind["newest_s"] <= kind["oldest_s"] < 7300 for kind in document["kinds"])
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "7 files, 7.0 kB in" in out and "compiled kernels      3  3.0 kB  2 h" in out
    assert max(len(line) for line in out.splitlines()[1:]) <= WIDTH
    assert listing(folder) == before


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--clear"]) == 0
    assert "4 files, 4.0 kB removed from" in capsys.readouterr().out
    left = {name for name in listing(folder) if not (folder / name).is_dir()}
    assert left == {*OTHERS, f"kernels/{'a' * 64}.cubin"}
    assert (folder.parent / "outside").read_text() == "of the user"
    assert main(["cache", "--clear"]) == 0
    assert "0 files, 0 bytes removed from" in capsys.readouterr().out


def test_unfinished_files_of_late_are_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(folder / ABANDONED)
    assert main(["cache", "--clear"]) == 0
    assert (folder / ABANDONED).exists()


def test_files_may_go_while_they_are_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def removed_meanwhile(path: Path) -> bool:
        path.unlink()
        return bool(path.lstat())

    monkeypatch.setattr(cache, "is_abandoned", removed_meanwhile)
    assert main(["cache"]) == 0
    assert "6 files, 6.0 kB in" in capsys.readouterr().out


def test_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "none"))
    assert main(["cache"]) == main(["cache", "--clear"]) == 0
    assert "0 files, 0 bytes in" in capsys.readouterr().out and not (tmp_path / "none").exists()


def test_what_others_can_write_is_left_to_them(folder: Path, refuses: Refuses) -> None:
    (folder / "kernels").chmod(0o777)
    before = listing(folder)
    refuses("cache --clear", "cannot clear the cache: other users can write to .*chmod")
    assert listing(folder) == before


def test_sizes_and_ages() -> None:
    assert [format_bytes(count) for count in (0, 999, 1000, 31.2e6, 4e9)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "31.2 MB", "4.0 GB"),
    ]
    assert [format_age(seconds) for seconds in (5, 119, 120, 7200, 10 * 86_400)] == [
        *("5 s", "119 s", "2 min", "2 h", "10 days"),
    ]
