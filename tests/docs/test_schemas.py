"""The descriptions of JSON documents in docs/schemas/, and what is stored or written against them."""

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from app.bench import scenario, training
from app.bench.ladder import results
from app.bench.peers import peers
from app.bench.profile import job
from app.bench.sweep import pipeline, text
from app.commands import accuracy, kernels, networks
from app.planning import tuning
from app.precision import SHORT
from app.report import SCHEMA as REPORT
from app.training.results import SCHEMA as TRAIN
from docs.generate.figures import FIGURES, SCHEMAS
from tests.support.schemas import mistakes

WRITERS = (results, peers, job, scenario, pipeline, text, training, accuracy, kernels, networks, tuning)
DESCRIPTIONS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(SCHEMAS.glob("*.json"))}
# Stored, but not described: reports of the version before, and what people copied from the old systems' reports.
OLDER = {"lenet5-inference/report/2", "lenet5-inference/old-reports/1"}
STORED = [*FIGURES.glob("*.json"), *tuning.SHIPPED.glob("*.json")]


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)


def test_every_document_that_is_written_is_described() -> None:
    described = [schema["properties"]["schema"]["const"] for name, schema in DESCRIPTIONS.items() if name != "common"]
    assert sorted(described) == sorted([REPORT, TRAIN, *(writer.SCHEMA for writer in WRITERS)])


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_are_strict(name: str) -> None:
    """They are JSON Schema, their references lead somewhere, and objects say what else they may hold."""
    from jsonschema import Draft202012Validator

    schema = DESCRIPTIONS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"{name}.json" and schema["title"]
    for part in parts(schema):
        if isinstance(part.get("$ref"), str):
            home, _, place = part["$ref"].partition("#/$defs/")
            assert place in DESCRIPTIONS[home.removesuffix(".json") or name]["$defs"], part
        if part.get("type") == "object":
            assert "additionalProperties" in part or "properties" not in part, part


def test_arithmetic_types_are_those_of_the_precisions() -> None:
    assert {*DESCRIPTIONS["common"]["$defs"]["dtype"]["enum"]} == {*SHORT, "float64"}


def test_every_description_is_listed() -> None:
    listed = re.findall(r"\(schemas/([a-z-]+)\.json\)", (SCHEMAS.parent / "json.md").read_text(encoding="utf-8"))
    assert sorted(listed) == list(DESCRIPTIONS)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_documents(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] in OLDER or not mistakes(document)


@pytest.mark.parametrize("change", ["unknown", "missing", "of another type"])
@pytest.mark.parametrize(
    "place",
    [(), ("device",), ("tables", 0, "rows", 3), ("tables", 0, "rows", 3, "rates"), ("batches", 0, "whole_program", 0)],
    ids=str,
)
def test_what_is_not_as_described_is_found(place: tuple[str | int, ...], change: str) -> None:
    """An unknown field, a missing one, and one of another type, at the top and deep inside."""
    document = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    part: Any = reduce(lambda inner, step: inner[step], place, document)
    name = "new" if change == "unknown" else next(name for name in part if name != "schema")
    if change == "missing":
        del part[name]
    else:
        part[name] = [None]
    assert mistakes(document)


def test_a_time_has_rates() -> None:
    document = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    row = next(row for row in document["tables"][0]["rows"] if row["ms"])
    row["rates"] = None
    assert mistakes(document)
    row["ms"] = None
    assert not mistakes(document)
