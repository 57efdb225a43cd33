"""Checks the JSON files that the documents are made of: docs/schemas/, and the rules that a schema cannot express."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from app.files.checks import BadValueError, Check, shown
from app.kernels.problems import ITEMSIZE, ConvProblem

SCHEMAS = Path(__file__).parents[1] / "schemas"
LARGEST, LONGEST = 1e15, 4000  # numbers, and characters of a string


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of docs/schemas/NAME.json."""
    common, own = (json.loads((SCHEMAS / f"{file}.json").read_text(encoding="utf-8")) for file in ("common", name))
    registry: Registry[Any] = Registry().with_resource("common.json", Resource.from_contents(common))
    return Draft202012Validator(own, registry=registry)


def mistakes(name: str, document: Any) -> list[str]:
    """Return where the document breaks that schema, one line each."""
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]


def check_of(name: str) -> Check:
    """Return a check by that schema, by the rules beside it, and of every number and string."""

    def check(value: Any) -> Any:
        try:
            found = mistakes(name, value)
        except RecursionError:
            found = ["nested too deep"]
        if found:
            raise BadValueError(found[0] if found[0].isprintable() else ascii(found[0]))
        _check_leaves(value)
        RULES.get(name, lambda _: None)(value)
        return value

    return check


def problem_of(key: Any) -> ConvProblem:
    """Return the convolution of that key, the inverse of ``problems.key``. Raises BadValueError."""
    kinds = {"True": True, "False": False}
    pairs = (part.partition("=") for part in str(key).split()[1:])
    values: dict[str, Any] = {
        name: int(said) if said.isdecimal() and len(said) < 10 else kinds.get(said, said) for name, _, said in pairs
    }
    try:
        problem = ConvProblem(**values)
        if all(type(size) is int and size > 0 for size in (*problem.sizes, *problem.convolved)):
            ITEMSIZE[problem.output_dtype]
            return problem
    except (TypeError, KeyError):
        pass
    raise BadValueError(f"{shown(key)} is not the key of a convolution")


def _check_leaves(value: Any) -> None:
    """Raise BadValueError for a number or a string that no table has room for."""
    if isinstance(value, dict):
        for part in (*value, *value.values()):
            _check_leaves(part)
    elif isinstance(value, list):
        for part in value:
            _check_leaves(part)
    elif isinstance(value, str) and not (value.isprintable() and len(value) <= LONGEST):
        raise BadValueError(f"{shown(value)} is not one line of up to {LONGEST} characters")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise BadValueError(f"{shown(value)} is not below {LARGEST:g}")


def _bench(found: Mapping[str, Any]) -> None:
    items = [table["item"] for table in found["tables"]]
    ops = [table for table in found["tables"] if table["is_op"]]
    if len(set(items)) < len(items) or len(ops) != 2:
        raise BadValueError("its tables are not of different items, two of them convolutions")
    for table in ops:
        problem_of(table["problems"].get("float32"))
    if any(row["ms"] and not row["rates"] for table in found["tables"] for row in table["rows"]):
        raise BadValueError("a time without rates")
    if not any(row["ms"] for row in found["whole_program"]):
        raise BadValueError("no variant of the whole program was timed")


def _profile(found: Mapping[str, Any]) -> None:
    if len({tuple(row["throughput"]) for row in found["counters"]}) > 1:
        raise BadValueError("its counters are of different units")


def _kernels(found: Mapping[str, Any]) -> None:
    if "resources" not in found:
        raise BadValueError("resources missing")


RULES: Mapping[str, Callable[[Mapping[str, Any]], None]] = {"bench": _bench, "profile": _profile, "kernels": _kernels}
