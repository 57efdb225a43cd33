"""Test that commands and files exist that messages, help texts and documents name, and that some commands succeed."""

import argparse
import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from app.base.errors import UserError
from app.cli import main
from app.commands.parsers import COMMANDS, load_parser
from app.engine.request import STREAMS, default_chunk_size
from app.terminal.console import BUG, USER_ERROR, Parser
from data_tools.__main__ import main as data_tools_main
from data_tools.commands import command_parser
from tests.support.shell import ROOT

SOURCES = [ROOT / "main.py", *(path for room in ("app", "data_tools") for path in sorted((ROOT / room).rglob("*.py")))]
BEGINS = re.compile(r"main\.py|python -m|pip |make |git ")
HOLE = "\0"  # stands in a text for an inserted value
VALUES = ("1", "lenet5", "fp32", "test")  # tried in place of HOLE
END = re.compile(r"[\n`\"…]|[;:,.)]+(?:\s|$)|\s+(?:#|&&|\||\()|  |[)\]]$")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
# Packages that are in no extra, because few users need them.
PACKAGES = {"nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc-cu12"}
READS_ONLY = ("networks", "kernels", "graph", "cache", "doctor")


class Command(NamedTuple):
    """A command in a text. place: file and line of the text. words: after the beginning of the command."""

    place: str
    words: tuple[str, ...]


@cache
def command_texts() -> tuple[tuple[str, str], ...]:
    """Return place and content of every string, except docstrings, that may name a command; values are ``HOLE``."""
    found = []
    for path in SOURCES:
        content = path.read_text(encoding="utf-8")
        if not BEGINS.search(content):  # parsing all files takes three times as long
            continue
        tree = ast.parse(content)
        inner: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                inner.add(id(node.body[0].value))  # type: ignore[attr-defined]
            if isinstance(node, ast.JoinedStr):
                inner |= {id(part) for part in node.values}
                text = "".join(str(one.value) if isinstance(one, ast.Constant) else HOLE for one in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                text = re.sub(r"{\w*}", HOLE, node.value)
            else:
                continue
            if BEGINS.search(text):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return tuple(found)


def find_commands(pattern: str) -> list[Command]:
    """Return every command that begins with the pattern."""
    found = []
    for place, text in command_texts():
        for start in re.finditer(pattern, text):
            rest = END.split(text[start.end() :], maxsplit=1)[0]
            try:
                words = shlex.split(rest)
            except ValueError:  # a quotation mark without its partner
                words = rest.split()
            found.append(Command(place, tuple(word.rstrip(HOLE) or HOLE for word in words)))
    return found


def accepts(parser: Parser, words: tuple[str, ...]) -> bool:
    """Return whether the parser accepts the words, with values in place of HOLE and without prose at the end."""
    options = [at for at, word in enumerate(words) if word.startswith("-")]
    for end in range(len(words), (options or [-1])[-1], -1):
        holes = sum(HOLE in word for word in words[:end])
        for values in product(VALUES, repeat=min(holes, 3)):
            given = iter((*values, *[VALUES[0]] * holes))
            try:
                parser.parse_args([word.replace(HOLE, next(given)) if HOLE in word else word for word in words[:end]])
            except UserError:
                continue
            return True
    return False


def check_command(one: Command, parser: Parser) -> None:
    known = parser._option_string_actions
    options = [word.partition("=")[0] for word in one.words if word.startswith("--") and word != "--"]
    assert not [option for option in options if option not in known and HOLE not in option], one
    assert not options or "--help" in options or accepts(parser, one.words), one


def test_commands_of_the_program() -> None:
    found = find_commands(r"(?<! of )python main\.py(?= |`|$)")
    assert len(found) > 50
    for one in found:
        name = one.words[0] if one.words and not one.words[0].startswith("-") else "run"
        if name not in (HOLE, "COMMAND"):
            assert name in ("run", *COMMANDS), one
            check_command(one._replace(words=one.words[name != "run" :]), load_parser(name))


def test_commands_without_their_interpreter() -> None:
    """Texts have commands such as ``main.py networks``, which prose may follow."""
    found = [one for one in find_commands(r"(?<!python )\bmain\.py ") if one.words]
    assert len(found) > 10
    for one in found:
        if one.words[0] in COMMANDS:
            check_command(one._replace(words=one.words[1:]), load_parser(one.words[0]))
        elif one.words[0].startswith("-"):
            check_command(one, load_parser("run"))


def test_commands_of_data_tools() -> None:
    found = find_commands(r"python -m data_tools(?= )")
    assert len(found) > 10
    (commands,) = (action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for one in found:
        assert one.words[0] in commands.choices, one
        check_command(one._replace(words=one.words[1:]), commands.choices[one.words[0]])


def test_modules_that_are_run() -> None:
    found = find_commands(r"python -m (?=[a-z])")
    assert {one.words[0] for one in found} >= {"data_tools", "docs.generate"}
    for one in found:
        assert find_spec(one.words[0]), one


def named_extras() -> Iterator[str]:
    """Yield every extra with which ``app.base.errors.pip_install_command`` is called."""
    for content in (path.read_text(encoding="utf-8") for path in SOURCES):
        for node in ast.walk(ast.parse(content)) if "pip_install_command(" in content else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pip_install_command":
                yield from (str(one.value) for one in node.args if isinstance(one, ast.Constant))


def test_extras_that_are_installed() -> None:
    found = [*named_extras()]
    assert len(found) > 10 and {*found} <= {*EXTRAS}


def test_packages_that_are_installed() -> None:
    found = find_commands(r"pip install (?:-U |--upgrade )?(?:-e )?")
    assert len(found) > 5
    for one in found:
        extra = re.fullmatch(r"(?:\.|lenet5-inference)\[(\w+|\0)\]", one.words[0])
        assert (extra[1] in {*EXTRAS, HOLE}) if extra else one.words[0] in {*PACKAGES, HOLE}, one


def test_targets_of_make() -> None:
    found = find_commands(r"\brun make |\bmake (?=\w+ installs)|, make (?=docs)")
    assert {one.words[0] for one in found} >= {"run", "docs"}
    for one in found:
        assert one.words[0] in TARGETS, one
    assert max(map(len, run(["make", "help"]).stdout.splitlines())) <= 80


def test_files_that_git_restores() -> None:
    found = find_commands(r"git checkout -- ")
    assert found
    for one in found:
        assert (ROOT / one.words[0]).exists(), one


def test_commands_that_only_read_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    words_of_all = {one.words for one in find_commands(r"(?:python )?main\.py(?= )") if one.words}
    commands = [words for words in words_of_all if words[0] in READS_ONLY]
    found = [one for one in commands if not {*one} & {"--instructions", "--json", "--resources"}]
    found = [one for one in found if HOLE not in "".join(one)]
    assert len(found) > 5
    for words in found:
        ends = [end for end in range(len(words), 0, -1) if accepts(load_parser(words[0]), words[1:end])]
        assert main([*words[: ends[0]]]) == 0, words
        assert capsys.readouterr().out, words


WRONG = {
    "run python main.py fly": test_commands_of_the_program,
    "run python main.py train --fast": test_commands_of_the_program,
    "run python main.py --batch many": test_commands_of_the_program,
    "see main.py bench --speed": test_commands_without_their_interpreter,
    "run: python -m data_tools fetch --split all": test_commands_of_data_tools,
    "by python -m docs.nothing": test_modules_that_are_run,
    "needs it: pip install -e '.[all]'": test_packages_that_are_installed,
    "run make it-so": test_targets_of_make,
    "run: git checkout -- nothing": test_files_that_git_restores,
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_command_in_a_text_is_found(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (*command_texts(), ("here:1", f"it is missing: {text}; or not"))
    monkeypatch.setitem(globals(), "command_texts", lambda: more)
    with pytest.raises(AssertionError, match="here:1"):
        WRONG[text]()


README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
INSTALLED = (ROOT / ".venv" / ".dev").exists()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def needs(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.fashion_mnist] if "--batch" in command or "data_tools" in command else []


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=needs(line)) for line in SHOWN if line.startswith("python ")]
)
def test_python_commands(command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Python commands of the README run in this process, in which most modules are loaded."""
    monkeypatch.chdir(ROOT)
    _, program, *words = shlex.split(command, comments=True)
    code = {"main.py": main, "-m": lambda words: data_tools_main(words[1:])}[program](words)
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out


@pytest.mark.fashion_mnist
@pytest.mark.skipif(not INSTALLED, reason="make run would set up .venv/ first; make test has done so")
def test_make_run() -> None:
    assert "main.py --batch 10000" in run(["make", "--dry-run", "run"]).stdout
    done = run(["make", "run", "BATCH=1000"])
    assert done.returncode == 0, done.stderr
    assert "1,000 correct" in done.stdout and "PASSED" in done.stdout


def test_make_test_is_what_ci_runs() -> None:
    assert "-m pytest" in run(["make", "--dry-run", "test", "PYTHON=python3"]).stdout
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
    """Links in documents lead to a file and, with an anchor, to a heading in it."""
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert "://" in link or target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], link


def test_every_exit_code_is_named() -> None:
    (sentence,) = re.findall(r"^Exit code (0 .*?)\n\n", README, re.MULTILINE | re.DOTALL)
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
