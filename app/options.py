"""Options as data: a frozen request whose fields say how each is given, and the parser that is made of it."""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from app.console import Parser

Request = TypeVar("Request")


def option(
    help: str, default: Any = None, *, name: str | None = None, group: str | None = None, **settings: Any
) -> Any:
    """A field of a request: the option ``--its-name``, or ``name``.

    A field that is a bool is a switch away from its default; a Path names a FILE. group: the heading in the help text
    that this option begins, for the fields behind it as well. settings: further arguments of argparse's
    ``add_argument``; ``exclusive=True`` for options of which only one may be given.
    """
    return field(default=default, metadata={"name": name, "group": group, "help": help, **settings})


def options(group: str | None = None, **words: str) -> Any:
    """A field of a request that is a request itself. words: fill the {word}s of its help texts."""
    return field(default=MISSING, metadata={"group": group, "words": words})


def add_options(parser: Parser, request: type) -> None:
    """Add the options of all of the request's fields, in their order."""
    _Adder(parser).add(request, {})


class _Adder:
    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._group: Any = parser  # for the next option
        self._exclusive: Any = None

    def add(self, request: type, words: Mapping[str, str]) -> None:
        hints = get_type_hints(request)
        for one in fields(request):
            about, kind = dict(one.metadata), hints[one.name]
            if (title := about.pop("group")) is not None:
                self._group, self._exclusive = self._parser.add_argument_group(title), None
            if is_dataclass(kind):
                self.add(cast(type, kind), about["words"])
                continue
            name = about.pop("name") or f"--{one.name.replace('_', '-')}"
            about["help"] = about["help"].format(**words) if words else about["help"]
            if kind is bool and "action" not in about:
                about["action"] = "store_false" if one.default else "store_true"
            elif kind in (Path, Path | None):
                about = {"type": Path, "metavar": "FILE"} | about
            place = self._group
            if about.pop("exclusive", False):
                self._exclusive = place = self._exclusive or self._group.add_mutually_exclusive_group()
            place.add_argument(name, dest=one.name, default=one.default, **about)


def read_request(request: type[Request], values: Mapping[str, Any]) -> Request:
    """The request with these values of its options, by field name."""
    hints = get_type_hints(request)
    found = {
        one.name: read_request(hints[one.name], values) if is_dataclass(hints[one.name]) else values[one.name]
        for one in fields(request)  # type: ignore[arg-type]
    }
    return request(**found)
