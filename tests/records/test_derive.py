"""Test that the strict reader and the JSON Schema that are derived from a document's type agree with each other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, is_typeddict

import pytest

from app.files.checks import BadValueError
from app.planning.tuning import SHIPPED
from app.records.derive import (
    OneOf,
    Pattern,
    check_for_type,
    document_schema,
    document_types,
    record_fields,
    split_annotated_type,
)
from docs.generate.figures import FIGURES
from tests.support.schemas import mistakes, validator

# Name of the strings that match a pattern → an example.
TEXTS = {"date": "2026-11-21 21:06 UTC", "SHA-256": "0" * 64, "name of a kernel's file": "a.cu"}


def smallest_value(hint: Any) -> Any:
    """Return the smallest value of a type, with all of its fields."""
    part = split_annotated_type(hint)
    inner, least = get_args(part.kind), getattr(part.limit, "least", 0)
    if is_typeddict(part.kind):
        return {name: smallest_value(field) for name, field in record_fields(part.kind).items()}
    if isinstance(part.limit, Pattern):
        return TEXTS[part.limit.what]
    if part.origin is Literal or isinstance(part.limit, OneOf):
        return (part.limit.words if part.limit else inner)[0]
    if part.origin is Union:
        return smallest_value(inner[0])
    if part.origin is tuple:
        return [smallest_value(one) for one in inner]
    if part.origin is list:
        return [smallest_value(inner[0])] * max(least, 1)
    if part.origin is dict:
        return {"a name": smallest_value(inner[1])}
    return {str: "text", bool: True, int: least, float: least + getattr(part.limit, "above", 0)}.get(part.kind)


def faulty_values(hint: Any, seen: set[Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) with one fault each in a value of a type; the error must name the place.

    seen: records whose faults another place has shown; their fields are left out.
    """
    part, good = split_annotated_type(hint), smallest_value(hint)
    inner = get_args(part.kind)
    if part.kind is Any:
        return
    yield place, 5 if isinstance(good, str) else "of another type"
    if is_typeddict(part.kind):
        yield place, {**good, "new": 1}
        if part.kind in seen:
            return
        seen.add(part.kind)
        for name, field in record_fields(part.kind).items():
            if name in part.kind.__required_keys__:
                yield place, {other: value for other, value in good.items() if other != name}
            yield from ((at, {**good, name: bad}) for at, bad in faulty_values(field, seen, f"{place}.{name}"))
    elif part.origin is Union:
        yield from list(faulty_values(inner[0], seen, place))[1:]
    elif part.origin is list:
        yield from ((at, [bad, *good[1:]]) for at, bad in faulty_values(inner[0], seen, f"{place}[0]"))
    elif part.origin is dict:
        yield from ((at, {"a name": bad}) for at, bad in faulty_values(inner[1], seen, f"{place}['a name']"))
    if part.limit is not None:
        yield from ((place, bad) for bad in values_beyond(part.limit, good))


def values_beyond(limit: Any, good: Any) -> Iterator[Any]:
    """Yield values just outside of a constraint. good: a value within it."""
    if isinstance(limit, Pattern | OneOf):
        yield f"{good}0"
    elif isinstance(good, str | list):
        yield from ([] if not limit.least else [good[: limit.least - 1]])
        yield from ([] if limit.most is None else [good * (limit.most + 1)])
    else:
        yield limit.least - 1 + limit.above
        yield from ([] if limit.most is None else [limit.most + 1])


@pytest.mark.parametrize("name", document_types())
def test_reading_and_schema_agree(name: str) -> None:
    """An example of each type passes; one fault at any place fails, and the reader's error names the place."""
    kind = document_types()[name]
    for one in get_args(kind) or [kind]:
        good = smallest_value(one)
        assert good["schema"].split("/")[:2] == ["lenet5-inference", name]
        check_for_type(kind)(good)
        validator(name).validate(good)
        for place, bad in faulty_values(one, set()):
            assert not validator(name).is_valid(bad), (place, bad)
            with pytest.raises(BadValueError) as found:
                check_for_type(kind)(bad)
            assert place in str(found.value) and str(found.value).isprintable()


@pytest.mark.parametrize("name", document_types())
def test_names_of_records_are_unique(name: str) -> None:
    """Two records of one name in a document would share one definition in the schema."""
    seen: dict[str, Any] = {}

    def visit(hint: Any) -> None:
        kind = split_annotated_type(hint).kind
        if is_typeddict(kind):
            assert seen.setdefault(kind.__name__, kind) is kind
        for inner in record_fields(kind).values() if is_typeddict(kind) else get_args(kind):
            visit(inner)

    visit(document_types()[name])
    assert set(document_schema(name)["$defs"]) <= set(seen)


def test_command_prints_a_schema(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from app.records.__main__ import main

    monkeypatch.setattr("sys.argv", ["records", "cache"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out) == document_schema("cache")


# --- stored documents


OLDER = {"lenet5-inference/report/2"}  # the repository has such documents, but no record of them


@pytest.mark.parametrize("path", [*FIGURES.glob("*.json"), *SHIPPED.glob("*.json")], ids=lambda path: path.stem)
def test_stored_documents_fit_their_records(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] in OLDER or not mistakes(document)


def test_a_row_with_a_time_needs_rates() -> None:
    document = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    row = next(row for row in document["tables"][0]["rows"] if row["ms"])
    document |= {"tables": [document["tables"][0] | {"rows": [row]}], "batches": []}
    row["rates"] = None
    assert mistakes(document)
    row["ms"] = None
    assert not mistakes(document)
