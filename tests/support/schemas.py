"""Check JSON documents against their records, by reading and by JSON Schema, and the width of printed tables."""

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from app.cli import main
from app.files.checks import BadValueError
from app.records.derive import check_for_type, document_schema, document_types
from app.terminal.text import UNLIMITED, WIDTH


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


def check_widths(as_text: Callable[[Any, int], str], document: Mapping[str, Any]) -> str:
    """Check that lines fit ``WIDTH`` columns and that ``--wide`` omits and cuts nothing; return the wide text."""
    assert all(len(line) <= WIDTH for line in as_text(document, WIDTH).splitlines())
    wide = as_text(document, UNLIMITED)
    assert "--wide adds" not in wide and not any(word.endswith("…") and len(word) > 1 for word in wide.split())
    return wide


def printed_wide(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints with ``--wide``; check that without it no line exceeds ``WIDTH`` columns."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", str(WIDTH))
        assert main(command.split()) == 0
        narrow = capsys.readouterr().out
        assert all(len(line) <= WIDTH for line in narrow.splitlines())
        assert main([*command.split(), "--wide", *["--overwrite"] * ("--json" in command)]) == 0
    wide = capsys.readouterr().out
    assert "--wide adds" not in wide
    return wide
