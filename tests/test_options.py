"""Requests: from the fields of a frozen dataclass to options, and from parsed options back to the request."""

from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from app.base.errors import UserError
from app.commands.parsers import COMMANDS, parser_of, request_of
from app.terminal.console import Parser
from app.terminal.options import add_options, option, options, read_request


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group of options."""

    depth: int = option("how deep {what} is", 3, type=int, once="--colour")
    fuse: bool = option("keep {what} apart", True, name="--no-fuse")


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A request."""

    file_name: Path | None = option("a file")
    inner: Inner = options("the hole", what="the hole")
    red: bool = option("paint it red", False, group="colours", exclusive=True)
    blue: bool = option("paint it blue", False, exclusive=True)


def parser() -> Parser:
    made = Parser(prog="dig")
    add_options(made, Outer)
    return made


def read(line: str) -> Outer:
    return read_request(Outer, vars(parser().parse_args(line.split())))


def test_a_request_is_read_from_its_own_options() -> None:
    assert read("") == Outer(file_name=None, inner=Inner(depth=3, fuse=True), red=False, blue=False)
    assert read("--file-name a --depth 5 --no-fuse --blue") == Outer(
        file_name=Path("a"), inner=Inner(depth=5, fuse=False), red=False, blue=True
    )
    with pytest.raises(UserError, match="not allowed with argument --red"):
        read("--red --blue")


def test_an_earlier_spelling_works_and_is_not_shown() -> None:
    assert read("--colour 7").inner.depth == 7 == read("--depth 7").inner.depth
    assert "--colour" not in parser().format_help()
    with pytest.raises(UserError, match="argument --depth: given twice"):
        read("--colour 7 --depth 7")


@pytest.mark.parametrize(
    ("command", "earlier", "name"),
    [("train", "--output", "--out"), ("train", "--batch", "--batch-size"), ("predict", "--batch", "--chunk")],
)
def test_one_name_means_one_thing(command: str, earlier: str, name: str) -> None:
    """--out is what a command writes, --batch how many images it works on; what they were called still works."""
    actions = parser_of(command)._option_string_actions
    assert actions[earlier] is actions[name] and actions[name].option_strings == [name]


def test_help_has_the_groups_and_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = parser().format_help().partition("options:")[2]
    assert "how deep the hole is" in text and "--file-name FILE" in text
    places = [text.index(word) for word in ("the hole:", "--depth", "--no-fuse", "colours:", "--red")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", [*COMMANDS, "run"])
def test_every_command_has_a_frozen_request_that_its_types_describe(name: str) -> None:
    needed = {
        "predict": ["photo.png"],
        "check": ["--conv", "direct"],
        "classify": ["images.npy", "--out", "labels"],
        "compare": ["before.json", "after.json"],
        "import": ["weights.bin", "--out", "weights.h5"],
        "export": ["--out", "model.onnx"],
    }
    line = {"sweep": ["--pipeline"], **needed}.get(name, [])
    check(request_of(name, parser_of(name).parse_args(line)))


def check(request: object) -> None:
    hints = get_type_hints(type(request))
    for one in fields(request):  # type: ignore[arg-type]
        value = getattr(request, one.name)
        with pytest.raises(FrozenInstanceError):
            setattr(request, one.name, value)
        either = get_args(hints[one.name]) if isinstance(hints[one.name], UnionType) else (hints[one.name],)
        kinds = [get_origin(kind) or kind for kind in either]
        assert isinstance(value, tuple(kinds)), one.name
        if hasattr(value, "__dataclass_fields__"):
            check(value)
