"""Derive from a document's type its strict reader, its JSON Schema and a table of its fields.

A type is a TypedDict, dict[str, …], list, tuple, Literal of strings, str, int, float, bool, Any, None, or a union of
them. ``Annotated`` adds a description with the unit (a string) and a constraint; if ``Annotated`` is nested, the
outermost description and constraint count.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Union, get_args, get_origin, is_typeddict

from app.files import checks
from app.files.checks import BadValueError, Check

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


class Range(NamedTuple):
    """Constrain a number to at least ``least``, or above it if ``above`` is true, and to at most ``most``."""

    least: int
    most: int | None = None
    above: bool = False


class Length(NamedTuple):
    """Constrain the number of items of a list, or the number of printable characters of a string on one line."""

    least: int = 0
    most: int | None = None


class Pattern(NamedTuple):
    """Constrain a string to match a regular expression from end to end; ``what`` names such strings."""

    pattern: str
    what: str


class OneOf(NamedTuple):
    """Constrain a string to one of ``words``, a constant of the code. (For words that the type lists, use Literal.)"""

    words: tuple[str, ...]


class Part(NamedTuple):
    """The parts of a type: ``kind``, without ``Annotated``; its description, or ''; ``limit``, a constraint or None."""

    kind: Any
    description: str
    limit: Any

    @property
    def origin(self) -> Any:
        """Return the type without its parameters, such as dict for dict[str, int]; Union for a union."""
        origin = get_origin(self.kind) or self.kind
        return Union if origin is UnionType else origin


def split_annotated_type(hint: Any) -> Part:
    """Return the parts of ``hint``: its bare type, and the description and constraint that ``Annotated`` adds."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else [hint]
    texts = ["", *(note for note in notes if isinstance(note, str))]
    limits = [None, *(note for note in notes if not isinstance(note, str))]
    return Part(kind, texts[-1], limits[-1])


def record_fields(record: Any) -> dict[str, Any]:
    """Return the types of a TypedDict's fields by name, without ``NotRequired``; fields of its bases come first."""
    hints = record.__annotations__.items()
    return {name: get_args(hint)[0] if get_origin(hint) is NotRequired else hint for name, hint in hints}


@cache
def document_types() -> dict[str, Any]:
    """Return the type of each document by name, sorted. If several records share a name, the type is their union.

    Each record of this package with a field ``schema`` is a document: ``report`` with ``lenet5-inference/report/1``.
    """
    found: dict[str, Any] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = import_module(f"{__package__}.{path.stem}")
        for kind in vars(module).values():
            if is_typeddict(kind) and kind.__module__ == module.__name__ and "schema" in record_fields(kind):
                (schema,) = get_args(record_fields(kind)["schema"])
                name = schema.split("/")[1]
                found[name] = found[name] | kind if name in found else kind
    return dict(sorted(found.items()))


def check_for_type(hint: Any) -> Check:
    """Return a function that checks a JSON value against a type.

    The function returns the value unchanged, or raises BadValueError that names the faulty field. (It uses
    the checks of app/files/checks.py, but not their results, in which lists are tuples and integers are floats.)
    """
    check = _build_check(hint)

    def check_and_return(value: Any) -> Any:
        check(value)
        return value

    return check_and_return


@cache
def _build_check(hint: Any) -> Check:
    part = split_annotated_type(hint)
    inner, limit = get_args(part.kind), part.limit
    if is_typeddict(part.kind):
        each = {name: _build_check(field) for name, field in record_fields(part.kind).items()}
        check = checks.object_check(each, optional=part.kind.__optional_keys__)
        tags = get_args(record_fields(part.kind)["schema"]) if "schema" in each else ()
        return checks.document_check(tags[0], check) if tags else check
    if part.origin is Union:
        others = [one for one in inner if one is not NoneType]
        check_other = _build_check(others[0]) if len(others) == 1 else _build_union_check(others)
        return checks.nullable_check(check_other) if NoneType in inner else check_other
    if part.origin is Literal:
        return checks.choice_check(*inner)
    if part.origin is tuple:
        return checks.tuple_check(*map(_build_check, inner))
    if part.origin is dict:
        return checks.mapping_check(_build_check(inner[1]))
    if part.origin is list:
        return checks.list_check(_build_check(inner[0]), *((limit.least, limit.most) if limit else ()))
    return _build_value_check(part.kind, limit)


def _build_value_check(kind: Any, limit: Any) -> Check:
    if isinstance(limit, OneOf):
        return checks.choice_check(*limit.words)
    if isinstance(limit, Pattern):
        return checks.pattern_check(limit.pattern, limit.what)
    if kind is str:
        return checks.text_check(limit.most) if limit else checks.string
    if kind is int:
        return checks.whole_number_check(limit.least, limit.most) if limit else checks.whole_number_check()
    if kind is float:
        return checks.number_check(limit.least, limit.most, limit.above) if limit else checks.number_check()
    return {bool: checks.flag, NoneType: checks.null}.get(kind, lambda value: value)


def _build_union_check(kinds: list[Any]) -> Check:
    """Return a check for a record of one of ``kinds``; errors refer to the kind that differs in the fewest fields."""

    def check_nearest(value: Any) -> Any:
        names = value.keys() if isinstance(value, dict) else set()
        faults = []
        for kind in sorted(kinds, key=lambda kind: len(record_fields(kind).keys() ^ names)):
            try:
                return _build_check(kind)(value)
            except BadValueError as fault:
                faults.append(fault)
        raise faults[0]

    return check_nearest


def document_schema(name: str) -> dict[str, Any]:
    """Return a document's JSON Schema (draft 2020-12); the records within the document are its ``$defs``."""
    kind, records = document_types()[name], dict[str, Any]()
    top = _record_schema(kind, records) if is_typeddict(kind) else _type_schema(kind, records)
    return {"$schema": DIALECT, "$id": f"{name}.json", **top, "$defs": records}


def _record_schema(kind: Any, records: dict[str, Any]) -> dict[str, Any]:
    return {
        **({"description": " ".join(kind.__doc__.split())} if kind.__doc__ else {}),
        "type": "object",
        "properties": {name: _type_schema(hint, records) for name, hint in record_fields(kind).items()},
        "required": [name for name in record_fields(kind) if name in kind.__required_keys__],
        "additionalProperties": False,
    }


def _type_schema(hint: Any, records: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a type, and add the records within the type to ``records`` by name."""
    part = split_annotated_type(hint)
    inner, limit = get_args(part.kind), part.limit
    found: dict[str, Any] = {"type": TYPES[part.kind]} if part.kind in TYPES else {}
    if is_typeddict(part.kind):
        name = part.kind.__name__
        records[name] = records.get(name) or _record_schema(part.kind, records)
        found = {"$ref": f"#/$defs/{name}"}
    elif part.origin is Union:
        found = {"anyOf": [_type_schema(one, records) for one in inner]}
    elif part.origin is Literal:
        found = {"enum": [*inner]}
    elif part.origin is tuple:
        found = {"type": "array", "prefixItems": [_type_schema(one, records) for one in inner]}
        limit = Length(len(inner), len(inner))
    elif part.origin is dict:
        found = {"type": "object", "additionalProperties": _type_schema(inner[1], records)}
    elif part.origin is list:
        found = {"type": "array", "items": _type_schema(inner[0], records)}
    if part.description:
        found = {"description": part.description} | found
    return found | (_constraint_keywords(part.origin, limit) if limit else {})


def _constraint_keywords(origin: Any, limit: Range | Length | Pattern | OneOf) -> dict[str, Any]:
    """Return the JSON Schema keywords of a constraint on values of the type ``origin``."""
    if isinstance(limit, OneOf):
        return {"enum": [*limit.words]}
    if isinstance(limit, Pattern):
        return {"pattern": f"^{limit.pattern}$"}
    if isinstance(limit, Range):
        names = ("exclusiveMinimum" if limit.above else "minimum", "maximum")
    else:
        names = ("minLength", "maxLength") if origin is str else ("minItems", "maxItems")
    return {name: bound for name, bound in zip(names, (limit.least, limit.most), strict=True) if bound is not None}
