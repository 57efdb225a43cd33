"""The planted errors that prove the sanitizers' harness: they compile, and each is caught by its tool."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cuda.compiler import compile_kernel
from app.kernels.plain_problems import ActivationProblem
from tests import sanitize
from tests.planted.__main__ import STEPS, planted

ROOT = Path(__file__).parents[2]
FAKE_TOOL = """#!/bin/sh
# compute-sanitizer --tool TOOL --error-exitcode CODE PYTHON -m tests.planted ERROR
echo "$2 sees $8"
{body}
"""


@pytest.mark.parametrize("technique", STEPS)
def test_planted_errors_compile_and_are_checked(technique: str) -> None:
    """Without a GPU: they are kernels as any other, and the script looks for each."""
    row = planted(technique)
    assert compile_kernel(row.path, row.config(ActivationProblem(77, "relu")).defines, "sm_90a").startswith(b"\x7fELF")
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
