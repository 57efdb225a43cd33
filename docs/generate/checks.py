"""Checks the JSON files that the documents are made of: docs/schemas/, and what the documents need beyond them."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from app.files.checks import BadValueError, shown

SCHEMAS = Path(__file__).parents[1] / "schemas"
LARGEST, LONGEST = 1e15, 4000  # numbers, and characters of a string
# Schema → what a document of its kind must hold to be shown: two convolutions, a run of the whole program, resources.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "bench": {
        "properties": {
            "tables": {"contains": {"properties": {"is_op": {"const": True}}}, "minContains": 2, "maxContains": 2},
            "whole_program": {"contains": {"properties": {"ms": {"type": "number", "exclusiveMinimum": 0}}}},
        }
    },
    "kernels": {"required": ["resources"]},
}


@cache
def validator(name: str, needed: bool = False) -> Draft202012Validator:
    """Return the validator of docs/schemas/NAME.json, and of what the documents need."""
    common, own = (json.loads((SCHEMAS / f"{file}.json").read_text(encoding="utf-8")) for file in ("common", name))
    registry: Registry[Any] = Registry().with_resource("common.json", Resource.from_contents(common))
    return Draft202012Validator({"allOf": [own, NEEDED.get(name, {}) if needed else {}]}, registry=registry)


def mistakes(name: str, document: Any, needed: bool = False) -> list[str]:
    """Return where the document breaks that schema, one line each."""
    found = validator(name, needed).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def check(name: str, value: Any) -> Any:
    """Check by that schema, by what the documents need, and every number and string. Raises BadValueError."""
    try:
        found = mistakes(name, value, needed=True)
    except RecursionError:
        found = ["nested too deep"]
    if found:
        raise BadValueError(found[0] if found[0].isprintable() else ascii(found[0]))
    _check_leaves(value)
    return value


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
