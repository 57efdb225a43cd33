"""Test that the README's commands work, and that files named in README, CONTRIBUTING.md and architecture.md exist."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from app.cli import main
from app.engine.request import STREAMS, default_chunk_size
from app.terminal.console import BUG, USER_ERROR
from data_tools.__main__ import main as data_tools_main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
INSTALLED = (ROOT / ".venv" / ".dev").exists()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def needs(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.fashion_mnist] if "--batch" in command or "data_tools" in command else []


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=needs(line)) for line in COMMANDS if line.startswith("python ")]
)
def test_python_commands(command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where most modules are loaded."""
    monkeypatch.chdir(ROOT)
    _, program, *words = shlex.split(command, comments=True)
    code = {"main.py": main, "-m": lambda words: data_tools_main(words[1:])}[program](words)
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out


@pytest.mark.fashion_mnist
@pytest.mark.skipif(not INSTALLED, reason="make run would set up .venv/ first; make test has done so")
def test_make_run() -> None:
    done = run(["make", "run"])
    assert done.returncode == 0, done.stderr
    assert "10,000 correct" in done.stdout and "PASSED" in done.stdout


def test_make_test_is_what_ci_runs() -> None:
    assert "-m pytest" in run(["make", "--dry-run", "test"]).stdout
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == ["make test"]


def test_named_files_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"## How it works\n\n```\n(.*?)```", text, re.DOTALL)
    top = ""
    for indent, name in re.findall(r"^( {0,2})(\S+)", tree, re.MULTILINE):
        top = top if indent else name
        assert (ROOT / top / name if indent else ROOT / name).exists(), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """To a file, and to a head in it."""
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert "://" in link or target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], link


def test_every_exit_code_is_named() -> None:
    (sentence,) = re.findall(r"^Exit code (0 .*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert re.findall(r"\b\d\b", sentence) == ["0", "1", str(USER_ERROR), str(BUG)]


def test_the_benchmarks_name_the_default_chunk() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")

    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    told = re.search(
        r"The defaults, four streams and chunks of ([\d,]+) images \(a fifth of the batch\), take ([\d.]+) ms\.", text
    )
    assert told is not None and told[1] == f"{default_chunk_size(10_000):,}" and STREAMS == 4
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {told[1]} | "))
    assert row.split(" | ")[STREAMS].startswith(f"{told[2]} ")
