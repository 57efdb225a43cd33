"""Test that ``tests.parts`` and ``tests.sanitize`` continue where they stopped and find planted errors."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cuda.compiler import compile_kernel
from app.kernels.plain_problems import ActivationProblem
from tests import parts, sanitize
from tests.parts import Finished
from tests.planted.__main__ import STEPS, planted
from tests.support.shell import wait_for


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with one file, in place of the source tree."""
    (tmp_path / "tree" / "app").mkdir(parents=True)
    (tmp_path / "tree" / "app" / "some.py").write_text("1", encoding="utf-8")
    return tmp_path / "tree"


def test_finished_names_are_kept_until_a_file_changes(
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
    """tests.sanitize has a check for each of them."""
    row = planted(technique)
    assert compile_kernel(row.path, row.launch_config(ActivationProblem(77, "relu")).defines, "sm_90a").startswith(
        b"\x7fELF"
    )
    assert technique in sanitize.PLANTED


RunPlanted = Callable[..., tuple[int, str]]


@pytest.fixture
def run_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunPlanted:
    """Return a function that runs the planted errors, perhaps with a fake tool, and returns exit code and output."""

    def program(*options: str, body: str | None = None) -> tuple[int, str]:
        if body is not None:
            tool = tmp_path / "compute-sanitizer"
            tool.write_text(FAKE_TOOL.format(body=body), encoding="utf-8")
            tool.chmod(0o755)
            monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        code = sanitize.main(["--kinds", "planted", "--record", str(tmp_path / "record"), *options])
        return code, capsys.readouterr().out

    return program


@pytest.mark.parametrize(
    ("body", "caught"),
    [
        ("echo '========= ERROR SUMMARY: 1 error'; exit 9", True),
        ("echo '========= ERROR SUMMARY: 1 error'; exit 1", True),  # the program failed because of the planted error
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 0", False),
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 1", False),
        ("echo 'no module named cupy'; exit 1", False),
    ],
)
def test_only_what_the_tool_counted_is_caught(body: str, caught: bool, run_planted: RunPlanted) -> None:
    """A program that fails for another reason does not count as a planted error that was found."""
    code, said = run_planted(body=body)
    assert (code == 0) is caught, said
    assert all(f": {technique}: {'caught' if caught else 'MISSED'}" in said for technique in STEPS)


def test_clean_checks_are_not_repeated_and_parts_are_all_of_them(run_planted: RunPlanted) -> None:
    _, first = run_planted("--part", "1/2", body="echo '========= ERROR SUMMARY: 1 error'; exit 9")
    assert first.startswith("2 checks, 0 of them clean before") and "\n2/2, " in first
    _, both = run_planted()
    assert both.startswith("3 checks, 2 of them clean before") and "\n1/1, " in both
    done = re.findall("planted: (.*): caught", first + both)
    assert sorted(done) == sorted(f"{tool}: {error}" for error, tool in sanitize.PLANTED.items())
    assert run_planted("--again")[1].startswith("3 checks, 0 of them clean before")


def test_a_signal_ends_the_tools_but_not_the_caller(tmp_path: Path) -> None:
    """The signal goes to a whole group, as from ``timeout``; the fake tool starts a helper and kills its own group."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\ntrap 'kill -KILL 0' TERM\nsleep 60 & echo $! >> {tmp_path}/helpers\nwait\n")
    tool.chmod(0o755)
    said = 'trap : TERM; "$@"; echo survived $?'
    command = ["sh", "-c", said, "sh", sys.executable, "-m", "tests.sanitize", "--kinds", "planted", "--jobs", "3"]
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        [*command, "--record", str(tmp_path)], cwd=ROOT, env=os.environ | path, stdout=-1, start_new_session=True
    ) as caller:
        wait_for(lambda: (tmp_path / "helpers").exists() and (tmp_path / "helpers").read_text().count("\n") == 3)
        os.killpg(caller.pid, signal.SIGTERM)
        assert caller.communicate(timeout=30)[0].endswith(b"survived 2\n")
    for helper in (tmp_path / "helpers").read_text().split():
        wait_for(lambda helper=helper: not Path(f"/proc/{helper}").exists())  # type: ignore[misc]


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")
def test_the_sanitizers_catch_the_planted_errors(run_planted: RunPlanted) -> None:
    code, said = run_planted()
    assert code == 0, said
