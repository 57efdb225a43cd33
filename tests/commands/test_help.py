"""Test what --help says of each command, and that output fits a narrow terminal."""

import re
import shlex
from pathlib import Path

import pytest

from app.cli import main
from app.commands.parsers import COMMANDS, parser_of, request_of
from app.terminal.text import NARROWEST, WIDTH
from tests.support.shell import write_good_files


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_examples_that_work_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit) as leaving:
        main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert leaving.value.code == 0 and text.startswith(f"usage: main.py {name}".rstrip())
    assert "%(" not in text and "options:" in text and all(len(line) <= WIDTH for line in text.splitlines())
    assert re.search(r"^exit codes: 0\s.*\s2\s.*\s3\s+a\s+bug", text, re.MULTILINE | re.DOTALL)
    examples = re.findall(r"^  python main\.py (.*?)(?:  .*)?$", text.partition("examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        command, *words = shlex.split(example)
        other = command if command in COMMANDS else "run"
        request_of(other, parser_of(other).parse_args(words if other == command else [command, *words]))
    if not name:
        assert "\n".join(f"  {command:<12}{does}" for command, does in COMMANDS.items()) in text


@pytest.mark.parametrize(
    "command",
    ["networks", "kernels", "graph", "graph --no-fuse", "cache", "--device cpu --data images --labels labels",
     "predict images --top 3", "export weights.h5 --out new.npz"],
)  # fmt: skip
def test_a_narrow_terminal_is_filled_and_no_more(
    command: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_good_files(place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", str(NARROWEST))
    assert main(command.split()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "/" not in line]  # paths are not broken
    assert lines and max(map(len, lines)) <= NARROWEST


def test_train_fits_the_terminal(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_good_files(place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("app.training.command._run", lambda *_: None)
    command = "train --network mlp --device cpu --data images --labels labels --validation 1"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("training mlp on the CPU") and all(len(line) <= 80 for line in out.splitlines())
