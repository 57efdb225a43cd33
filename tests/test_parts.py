"""Test that long checks go on where they stopped."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cuda.compiler import compile_kernel
from app.kernels.plain_problems import ActivationProblem
from tests import parts, sanitize
from tests.parts import Finished
from tests.planted.__main__ import STEPS, planted


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


# --- The planted errors that prove the sanitizers' harness


ROOT = Path(__file__).parents[1]
FAKE_TOOL = """#!/bin/sh
# compute-sanitizer --tool TOOL --error-exitcode CODE PYTHON -m tests.planted ERROR
echo "$2 sees $8"
{body}
"""


@pytest.mark.parametrize("technique", STEPS)
def test_planted_errors_compile_and_are_checked(technique: str) -> None:
    """Without a GPU: they are kernels as any other, and the script looks for each."""
    row = planted(technique)
    assert compile_kernel(row.path, row.launch_config(ActivationProblem(77, "relu")).defines, "sm_90a").startswith(
        b"\x7fELF"
    )
    assert technique in sanitize.PLANTED


def run(record: Path, *options: str, path: str) -> subprocess.CompletedProcess[str]:
    """The script's planted errors, with that PATH. record: folder."""
    command = [sys.executable, "-m", "tests.sanitize", "--kinds", "planted", "--record", str(record), *options]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("body", "caught"),
    [
        ("echo '========= ERROR SUMMARY: 1 error'; exit 9", True),
        ("echo '========= ERROR SUMMARY: 1 error'; exit 1", True),  # the program failed because of what was found
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 0", False),
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 1", False),
        ("echo 'no module named cupy'; exit 1", False),
    ],
)
def test_only_what_the_tool_counted_is_caught(body: str, caught: bool, tmp_path: Path) -> None:
    """Without a GPU: a program that fails by itself does not pass for a planted error that was found."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE_TOOL.format(body=body), encoding="utf-8")
    tool.chmod(0o755)
    done = run(tmp_path, path=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (done.returncode == 0) is caught, done.stdout + done.stderr
    assert all(f": {technique}: {'caught' if caught else 'MISSED'}" in done.stdout for technique in STEPS)


def test_clean_checks_are_not_repeated_and_parts_are_all_of_them(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE_TOOL.format(body="echo '========= ERROR SUMMARY: 1 error'; exit 9"), encoding="utf-8")
    tool.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    record = tmp_path / "record"
    first = run(record, "--part", "1/2", path=path).stdout
    assert first.startswith("2 checks, 0 of them clean before") and "\n2/2, " in first
    both = run(record, path=path).stdout
    assert both.startswith("3 checks, 2 of them clean before") and "\n1/1, " in both
    done = re.findall("planted: (.*): caught", first + both)
    assert sorted(done) == sorted(f"{tool}: {error}" for error, tool in sanitize.PLANTED.items())
    assert run(record, "--again", path=path).stdout.startswith("3 checks, 0 of them clean before")


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")
def test_the_sanitizers_catch_the_planted_errors(tmp_path: Path) -> None:
    done = run(tmp_path, path=os.environ["PATH"])
    assert done.returncode == 0, done.stdout + done.stderr
