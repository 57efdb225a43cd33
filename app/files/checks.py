"""Check values that a user typed or that a file contains. A check is a function that returns the value or raises.

Checks combine to describe a JSON document; their BadValueError names the position in the document.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Check = Callable[[Any], Any]
MAX_SHOWN = 60  # largest number of characters of a value in an error


class BadValueError(ValueError):
    """A value is not acceptable. The text is the reason, in one printable line."""


def _predicate_check(
    holds: Callable[[Any], bool], fault: str, then: Callable[[Any], Any] = lambda value: value
) -> Check:
    """Return a check: it returns ``then(value)`` if ``holds(value)``, and else raises BadValueError with ``fault``."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise BadValueError(f"{format_for_error(value)} {fault}")
        return then(value)

    return check


def whole_number_check(least: int | None = None, most: int | None = None) -> Check:
    """Return a check for a whole number from ``least`` to ``most``; None means no limit."""
    within = _predicate_check(
        lambda value: (least is None or least <= value) and (most is None or value <= most),
        f"is not at least {least}" if most is None else f"is not between {least} and {most:,}",
    )
    # bool is a subclass of int
    return _predicate_check(lambda value: type(value) is int, "is not a whole number", within)


def number_check(least: float = -sys.float_info.max, most: float | None = None, above: bool = False) -> Check:
    """Return a check for a number from ``least`` to ``most``. above: exclude ``least``. The check returns a float."""
    highest = sys.float_info.max if most is None else most
    within = _predicate_check(
        lambda value: least <= value <= highest and not (above and value == least),  # false for NaN
        f"is not {'above' if above else 'at least'} {least:g}" + ("" if most is None else f" and at most {most:g}"),
        float,
    )
    return _predicate_check(lambda value: type(value) in (int, float), "is not a number", within)


def text_check(most: int = 200) -> Check:
    """Return a check for one line of at most ``most`` printable characters."""
    return _predicate_check(
        lambda value: isinstance(value, str) and value.isprintable() and len(value) <= most,
        f"is not one line of up to {most} characters",
    )


string = _predicate_check(lambda value: isinstance(value, str), "is no text")  # a text of any number of lines
flag = _predicate_check(lambda value: isinstance(value, bool), "is neither true nor false")
null = _predicate_check(lambda value: value is None, "is not null")


def pattern_check(expression: str, what: str) -> Check:
    """Return a check for text that fully matches a regular expression. what: name of such text, such as ``SHA-256``."""
    return _predicate_check(
        lambda value: isinstance(value, str) and re.fullmatch(expression, value) is not None, f"is no {what}"
    )


def choice_check(*values: str) -> Check:
    """Return a check for one of the words ``values``."""
    return _predicate_check(lambda value: isinstance(value, str) and value in values, f"is none of {', '.join(values)}")


def nullable_check(check: Check) -> Check:
    """Return a check for null or for a value that passes ``check``."""
    return lambda value: None if value is None else check(value)


def list_check(check: Check, least: int = 0, most: int | None = None) -> Check:
    """Return a check for a list of ``least`` to ``most`` values, each of which passes ``check``."""
    length = f" of {least}" if least == most else f" of {least} or more" if most is None else f" of {least} to {most}"
    return _predicate_check(
        lambda value: isinstance(value, list) and least <= len(value) and (most is None or len(value) <= most),
        "is not a list" + (length if least or most else ""),
        lambda value: [_check_at(f"[{at}]", check, item) for at, item in enumerate(value)],
    )


def tuple_check(*checks: Check) -> Check:
    """Return a check for a list with one value for each check, in order. The check returns a tuple."""
    return _predicate_check(
        lambda value: isinstance(value, list) and len(value) == len(checks),
        f"is not a list of {len(checks)}",
        lambda value: tuple(_check_at(f"[{at}]", checks[at], item) for at, item in enumerate(value)),
    )


def mapping_check(check: Check) -> Check:
    """Return a check for a JSON object whose values pass ``check``. Its names may be any lines of printable text."""
    check_name = text_check(1000)

    def check_mapping(value: Any) -> dict[str, Any]:
        return {
            check_name(name): _check_at(f"[{format_for_error(name)}]", check, item)
            for name, item in _object(value).items()
        }

    return check_mapping


def object_check(checks: Mapping[str, Check], *, optional: Iterable[str] = (), others: bool = False) -> Check:
    """Return a check for a JSON object with the fields of ``checks``, some optional. others: allow unknown fields."""
    needed = checks.keys() - set(optional)

    def check_object(value: Any) -> dict[str, Any]:
        found = _object(value)
        if missing := sorted(needed - found.keys()):
            raise BadValueError(f"{', '.join(missing)} missing")
        if not others and (unknown := sorted(found.keys() - checks.keys())):
            raise BadValueError(f"{format_for_error(unknown[0])} is unknown")
        checked = {name: _check_at(f".{name}", check, found[name]) for name, check in checks.items() if name in found}
        return {**found, **checked}

    return check_object


def document_check(schema: str, check: Check) -> Check:
    """Return a check for a JSON object that passes ``check`` and whose field "schema" is the text ``schema``."""

    def check_schema_and_fields(value: Any) -> Any:
        _check_at(".schema", choice_check(schema), _object(value).get("schema"))
        return check(value)

    return check_schema_and_fields


def parse_json(content: str) -> Any:
    """Return the value of a JSON text. Raises BadValueError, also for NaN, infinity, or a name twice in an object."""
    try:
        return json.loads(content, object_pairs_hook=_refuse_duplicate_names, parse_constant=_refuse_nonfinite_constant)
    except BadValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"not JSON: {format_for_error(str(error))}") from None


def format_for_error(value: Any) -> str:
    """Return a short form of a value, in one line, for an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > 10**MAX_SHOWN:
        return "a huge number"  # Python refuses to print very large integers
    said = str(value).removesuffix(".0") if isinstance(value, int | float) else ascii(value)
    return said if len(said) <= MAX_SHOWN else f"{said[: MAX_SHOWN - 1]}…"


_object = _predicate_check(lambda value: isinstance(value, dict), "is not an object")


def _check_at(place: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except BadValueError as error:
        deeper = str(error)
        raise BadValueError(f"{place}{'' if deeper[:1] in '.[' else ': '}{deeper}") from None


def _refuse_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadValueError("an object has the same name twice")
    return found


def _refuse_nonfinite_constant(constant: str) -> Any:
    raise BadValueError(f"{constant} is not a JSON number")
