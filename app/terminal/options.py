"""Define the options of a command as fields of a frozen dataclass, its request, and derive its parser from them."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from app.terminal.console import Parser

Request = TypeVar("Request")


def option(
    help: str, default: Any = None, *, name: str | None = None, group: str | None = None, **settings: Any
) -> Any:
    """Return a dataclass field that defines an option of a command.

    help: its help text. name: the option; by default the field's name, with ``--``. A name without hyphens is a
    positional argument. A bool field is a switch that inverts its default; a Path field takes a FILE. group: heading in
    the help for this option and those of the next fields. settings: further arguments of argparse's ``add_argument``,
    and three more. ``exclusive=True``: only one such option of the group may be given. ``twice``: the remedy in the
    error for an option given twice. ``once``: the option's earlier spelling, which still works.
    """
    return field(default=default, metadata={"name": name, "group": group, "help": help, **settings})


def options(group: str | None = None, **words: str) -> Any:
    """Return a dataclass field that includes another request's options. words: fill ``{word}`` in their help texts."""
    return field(default=MISSING, metadata={"group": group, "words": words})


def add_options(parser: Parser, request: type) -> None:
    """Add the options of all fields of the request to the parser, in the order of the fields."""
    group: Any = parser
    exclusive: Any = None
    for one, kind, about in _iterate_options(request):
        if (title := about.pop("group")) is not None:
            group, exclusive = parser.add_argument_group(title), None
        name = about.pop("name") or f"--{one.name.replace('_', '-')}"
        if kind is bool and "action" not in about:
            about["action"] = "store_false" if one.default else "store_true"
        elif kind in (Path, Path | None):
            about = {"type": Path, "metavar": "FILE"} | about
        place = group
        if about.pop("exclusive", False):
            exclusive = place = exclusive or group.add_mutually_exclusive_group()
        if name.startswith("-"):  # argparse refuses ``dest`` for a positional argument, whose name it is
            about["dest"] = one.name
        remedy, once = about.pop("twice", None), about.pop("once", None)
        action = place.add_argument(name, default=one.default, **about)
        if once is not None:
            parser._option_string_actions[once] = action  # only here, so neither help nor completion shows it
        if remedy is not None:
            action.twice = remedy


def _iterate_options(
    request: type, words: Mapping[str, str] | None = None, group: str | None = None
) -> Iterator[tuple[Field[Any], Any, dict[str, Any]]]:
    """Yield each option's field, type and metadata. words: values by name for the help texts. group: first heading."""
    hints = get_type_hints(request)
    for one in fields(request):
        about, kind = dict(one.metadata), hints[one.name]
        about["group"], group = about["group"] or group, None
        if is_dataclass(kind):
            yield from _iterate_options(cast(type, kind), about["words"], about["group"])
        else:
            yield one, kind, about | ({"help": about["help"].format(**words)} if words else {})


def request_from_values(request: type[Request], values: Mapping[str, Any]) -> Request:
    """Return an instance of ``request``, a dataclass of options. values: field → value, nested requests' included."""
    hints = get_type_hints(request)
    found = {
        one.name: request_from_values(hints[one.name], values) if is_dataclass(hints[one.name]) else values[one.name]
        for one in fields(request)  # type: ignore[arg-type]
    }
    return request(**found)
