"""Test that long checks go on where they stopped."""

import subprocess
from pathlib import Path

import pytest

from tests import parts
from tests.parts import Finished


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one file."""
    (tmp_path / "tree" / "app").mkdir(parents=True)
    (tmp_path / "tree" / "app" / "some.py").write_text("1", encoding="utf-8")
    return tmp_path / "tree"


def test_what_is_finished_is_remembered_for_these_files(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(name: str = "some part", *, program: str = "parts", again: bool = False) -> bool:
        return name in Finished(program, tmp_path / "record", root=tree, again=again)

    assert not known()
    Finished("parts", tmp_path / "record", root=tree).add("some part")
    for made in (".git/index", "app/__pycache__/some.pyc", "build/site/page.html", "own.egg-info/PKG-INFO"):
        (tree / made).parent.mkdir(parents=True, exist_ok=True)
        (tree / made).write_text("made", encoding="utf-8")
    assert known() and not known("some") and not known(program="sanitize")
    (tree / "app" / "some.py").write_text("2", encoding="utf-8")
    assert not known()
    (tree / "app" / "some.py").write_text("1", encoding="utf-8")
    assert known()
    (tree / "app" / "some.py").rename(tree / "app" / "other.py")
    assert not known()
    (tree / "app" / "other.py").rename(tree / "app" / "some.py")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "why_no_gpu", lambda: None)
        patch.setattr(parts, "describe_gpu", lambda: {"name": "Some Card"})
        assert not known()
    assert known() and not known(again=True) and not known()


def test_parts_that_passed_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails does not hold up the others; pytest's exit code 5 means that a part has no test."""
    codes = {"1/3": 0, "2/3": 1, "3/3": 5, "alone": 0}
    ran: list[str] = []

    def pytest_of(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        assert command[-1] == "tests/kernels"
        (name,) = codes.keys() & {*command}
        assert (name == "alone") is ("-n" not in command)
        ran.append(name)
        return subprocess.CompletedProcess(command, codes[name])

    monkeypatch.setattr(parts.subprocess, "run", pytest_of)
    command = ["--parts", "3", "--record", str(tmp_path), "tests/kernels"]
    assert parts.main(command) == 1 and ran == [*codes]
    assert "failed: part 2/3; the next call runs only these" in capsys.readouterr().out
    ran.clear()
    codes["2/3"] = 0
    assert parts.main(command) == 0 and ran == ["2/3"]
    out = capsys.readouterr().out
    assert out.count("passed before") == 3 and out.endswith("all parts passed\n")
    ran.clear()
    assert parts.main([*command, "--again"]) == 0 and ran == [*codes]
