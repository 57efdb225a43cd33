"""Check JSON documents against their records in app/records/, by reading and by JSON Schema."""

import importlib.util
from functools import cache
from typing import Any

from app.files.checks import BadValueError
from app.records.derive import check_of, document_types, schema


@cache
def validator(name: str) -> Any:
    """The validator of the document's JSON Schema, which is one."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema(name))
    return Draft202012Validator(schema(name))


def mistakes(document: Any) -> list[str]:
    """Return where the document, as read from JSON, is not as its type: one line each. Both ways to check it agree."""
    _, name, _ = document["schema"].split("/")  # such as lenet5-inference/report/3
    found = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]
    try:
        check_of(document_types()[name])(document)
    except BadValueError as fault:
        assert found, fault
        found.append(str(fault))
    else:
        assert not found
    return found


def check_described(document: Any) -> None:
    """The document is of its type. For tests on the card, where jsonschema may not be installed."""
    if importlib.util.find_spec("jsonschema") is not None:
        found = mistakes(document)
        assert not found, found
    else:
        check_of(document_types()[document["schema"].split("/")[1]])(document)
