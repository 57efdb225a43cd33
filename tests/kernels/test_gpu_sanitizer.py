"""The planted errors that prove the sanitizers' harness: they compile, and each is caught by its tool."""

import os
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


def run(*, path: str) -> subprocess.CompletedProcess[str]:
    """The script's planted errors, with that PATH."""
    command = [sys.executable, "-m", "tests.sanitize", "--parts", "planted"]
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
    done = run(path=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (done.returncode == 0) is caught, done.stdout + done.stderr
    assert all(f"caught {technique}" in done.stdout for technique in STEPS) is caught
    assert caught or "memcheck missed a planted error: out_of_bounds" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")
def test_the_sanitizers_catch_the_planted_errors() -> None:
    done = run(path=os.environ["PATH"])
    assert done.returncode == 0, done.stdout + done.stderr
