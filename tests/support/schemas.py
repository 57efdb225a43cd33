"""Check JSON documents against their records in app/records/, by reading and by JSON Schema."""

import importlib.util
from functools import cache
from typing import Any

from app.files.checks import BadValueError
from app.records.derive import check_for_type, document_schema, document_types


@cache
def validator(name: str) -> Any:
    """Return a validator for the document's JSON Schema, after checking that the schema itself is valid."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(document_schema(name))
    return Draft202012Validator(document_schema(name))


def mistakes(document: Any) -> list[str]:
    """Return a line for each place where a document differs from its type; check that both ways of checking agree."""
    _, name, _ = document["schema"].split("/")  # such as lenet5-inference/report/3
    found = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]
    try:
        check_for_type(document_types()[name])(document)
    except BadValueError as fault:
        assert found, fault
        found.append(str(fault))
    else:
        assert not found
    return found


def check_described(document: Any) -> None:
    """Check a document by its type alone, for tests on a GPU, where jsonschema may not be installed."""
    if importlib.util.find_spec("jsonschema") is not None:
        found = mistakes(document)
        assert not found, found
    else:
        check_for_type(document_types()[document["schema"].split("/")[1]])(document)
