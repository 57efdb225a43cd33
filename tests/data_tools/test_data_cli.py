"""Test ``python -m data_tools``: its output and exit codes, and never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.interrupts import INTERRUPTED
from app.text import WIDTH
from data_tools import commands, fashion_mnist
from data_tools.__main__ import main
from data_tools.idx import write_idx
from tests.support.shell import ROOT, Refuses, check_error
from tests.support.tiny_fashion import FILES, IMAGES, NAMES, write


@pytest.fixture
def system(cache: Path, tmp_path: Path) -> Path:
    """The system directory, with good files, where nothing else is to be found."""
    return write(tmp_path / "system")


@pytest.mark.parametrize("options", [[], ["--data-dir", "{}", "--split", "test"]], ids=["found", "named"])
def test_fetch_prints_where_the_files_are(options: list[str], system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", *(option.format(system) for option in options)]) == 0
    assert capsys.readouterr().out == f"test: {system}\n"


def test_fetch_that_fails(system: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--data-dir", str(tmp_path / "other")]) == 2
    output = capsys.readouterr()
    assert "error: cannot get Fashion-MNIST" in output.err and FILES[0].sha256 in output.err and not output.out


def test_verify_good_files(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"OK  {system / name}.gz" for name in NAMES]


def test_verify_tells_the_bad_and_the_missing(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = system / f"{NAMES[0]}.gz"
    write_idx(bad, IMAGES[::-1].copy())
    assert main(["verify"]) == 2
    output = capsys.readouterr()
    assert output.out == f"OK  {system / NAMES[1]}.gz\n"
    assert output.err.startswith(f"error: {bad} is not the original") and output.err.count("\n") == 1
    bad.unlink()
    (system / f"{NAMES[1]}.gz").write_bytes(b"")
    assert main(["verify", "--data-dir", str(system)]) == 2
    output = capsys.readouterr()
    remedy = f"run: python -m data_tools fetch --data-dir {system} (and 1 more)"
    assert output.err == f"error: {bad.name} is not in {system}; {remedy}\n"


def test_verify_does_not_fetch(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    monkeypatch.setattr(fashion_mnist, "SYSTEM_DIR", tmp_path / "empty")
    monkeypatch.setattr(fashion_mnist, "fetch", lambda *_: pytest.fail("fetched"))
    refuses("verify", r"; run: python -m data_tools fetch \(and 1 more\)", main)


def test_info(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--data-dir", str(system)]) == 0
    output = capsys.readouterr().out
    mean = f"mean pixel {IMAGES.mean():.3f} of 255"
    for text in (str(system), "(40, 28, 28) uint8", mean, "Ankle boot", *(file.sha256 for file in FILES)):
        assert text in output
    counts = [int(line.split()[-1]) for line in output.splitlines()[4:14]]
    assert sum(counts) == 40


def test_interrupt_one_line(system: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(commands.COMMANDS, "info", (interrupted, "x"))
    refuses("info", INTERRUPTED.removeprefix("error: "), main)


@pytest.mark.parametrize("command", ["", "info --split none", "other"])
def test_wrong_arguments(command: str, refuses: Refuses) -> None:
    refuses(command, r"--help\)", main)


@pytest.mark.parametrize("command", ["", *commands.COMMANDS, "resize", "bundle"])
def test_help_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ") and all(len(line) <= WIDTH for line in lines)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "data_tools", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_run_as_a_program(tmp_path: Path) -> None:
    done = run("--help")
    assert done.returncode == 0 and all(word in done.stdout for word in ("fetch", "verify", "info", "LENET_CACHE_DIR"))
    done = run("info", "--data-dir", str(tmp_path))
    check_error(done.returncode, done.stdout, done.stderr, str(tmp_path))
