"""Test the help of each command, output on a narrow terminal, and completion in shells."""

import os
import pty
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from app.cli import main
from app.commands.completion import SHELLS, _quote_for_shell
from app.commands.parsers import COMMANDS, load_parser, make_request
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
        make_request(other, load_parser(other).parse_args(words if other == command else [command, *words]))
    if not name:
        assert "\n".join(f"  {command:<12}{does}" for command, does in COMMANDS.items()) in text


@pytest.mark.parametrize(
    "command",
    ["networks", "kernels", "graph", "graph --no-fuse", "cache", "--device cpu --data images --labels labels",
     "predict images --top 3", "export weights.h5 --out new.npz"],
)  # fmt: skip
def test_a_narrow_terminal_is_filled_and_no_more(
    command: str, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_good_files(workdir)
    monkeypatch.chdir(workdir)
    monkeypatch.setenv("COLUMNS", str(NARROWEST))
    assert main(command.split()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "/" not in line]  # paths are not broken
    assert lines and max(map(len, lines)) <= NARROWEST


def test_train_fits_the_terminal(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_good_files(workdir)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("app.training.command._train_and_write", lambda *_: None)
    command = "train --network mlp --device cpu --data images --labels labels --validation 1"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("training mlp on the CPU") and all(len(line) <= 80 for line in out.splitlines())


CASES = {
    "lenet5-inference pre": {"predict", "precompile"},
    "lenet5-inference --prec": {"--precision"},
    "lenet5-inference train --opt": {"--optimiser"},
    "lenet5-inference predict --precision fp1": {"fp16"},
    "lenet5-inference graph --network mi": {"minidnn86"},
    "lenet5-inference predict --out ans": {"answers.csv"},
    "lenet5-inference train --output": set(),
}
TYPED = {
    "lenet5-inference net": "lenet5-inference networks",
    "lenet5-inference train --opt": "lenet5-inference train --optimiser",
    "lenet5-inference predict --out ans": "lenet5-inference predict --out answers.csv",
}
# Shell → program that gets the script's path and the line to complete, and prints the words, one a line.
ASK = {
    "bash": """
        source "$1"
        COMP_WORDS=($2) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _lenet5_inference
        [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))  # complete -o default
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "fish": "source $argv[1]; complete -C $argv[2] | string split -f1 \\t; or true",
}


def test_words_are_quoted_for_fish() -> None:
    assert _quote_for_shell(r"it's \ here") == r"'it\'s \\ here'"


@pytest.fixture
def scripts_folder(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the completion scripts, ``script.bash`` and so on, into a folder with one other file; return the folder."""
    for shell in SHELLS:
        with pytest.raises(SystemExit):
            main(["--completion", shell])
        (workdir / f"script.{shell}").write_text(capsys.readouterr().out)
    (workdir / "answers.csv").touch()
    return workdir


@pytest.mark.parametrize("shell", ASK)
@pytest.mark.parametrize("line", CASES)
def test_words_are_completed(shell: str, line: str, scripts_folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, "-c", ASK[shell], *["-"] * (shell == "bash"), str(scripts_folder / f"script.{shell}"), line]
    done = subprocess.run(command, cwd=scripts_folder, capture_output=True, text=True, timeout=60, check=True)
    assert (set(done.stdout.split()), done.stderr) == (CASES[line], "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_what_is_typed(scripts_folder: Path) -> None:
    """Type the beginning of each line and a tab in a terminal of zsh, and let zsh print the completed line."""
    typed = "".join(f"{line}\t\x01print -r -- '<\x05>'\n" for line in TYPED)
    keys = f"source script.zsh\n{typed}exit\n"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(scripts_folder)
        os.execvpe(
            "timeout",
            ["timeout", "--foreground", "60", "zsh", "-f", "-i"],
            {**os.environ, "HOME": str(scripts_folder), "TERM": "dumb", "PS1": ""},
        )
    os.write(terminal, keys.encode())
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while part := os.read(terminal, 4096):
            shown += part
    os.waitpid(child, 0)
    found = re.findall(r"^<(.*?) ?>", shown.decode().replace("\r", ""), re.MULTILINE)
    assert found == [*TYPED.values()]
