"""The descriptions of JSON documents in docs/schemas/, and what is stored or written against them."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.bench.ladder import results
from app.bench.peers import peers
from app.bench.profile import job
from app.bench.scenario import SCHEMA as SCENARIO
from app.bench.sweep import pipeline, text
from app.bench.training import SCHEMA as TRAINING
from app.commands import accuracy, kernels, networks
from app.planning import tuning
from app.precision import SHORT
from app.report import SCHEMA as REPORT
from app.training.results import SCHEMA as TRAIN
from docs.generate.figures import FIGURES
from tests.support.schemas import FOLDER, described, mistakes

ROOT = FOLDER.parents[1]
WRITTEN = {
    *(results.SCHEMA, peers.SCHEMA, job.SCHEMA, SCENARIO, pipeline.SCHEMA, text.SCHEMA, TRAINING),
    *(accuracy.SCHEMA, kernels.SCHEMA, networks.SCHEMA, tuning.SCHEMA, REPORT, TRAIN),
}
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
    assert described().keys() == WRITTEN


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_descriptions_are_strict(path: Path) -> None:
    """They are JSON Schema, their references lead somewhere, and objects say what else they may hold."""
    from jsonschema import Draft202012Validator

    schema = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == path.name and schema["title"]
    for part in parts(schema):
        if isinstance(part.get("$ref"), str):
            name, _, place = part["$ref"].partition("#/$defs/")
            home = json.loads((FOLDER / name).read_text(encoding="utf-8")) if name else schema
            assert place in home["$defs"], part
        if part.get("type") == "object":
            assert "additionalProperties" in part or "properties" not in part, part


def test_arithmetic_types_are_those_of_the_precisions() -> None:
    common = json.loads((FOLDER / "common.json").read_text(encoding="utf-8"))
    assert {*common["$defs"]["dtype"]["enum"]} == {*SHORT, "float64"}


def test_every_description_is_listed() -> None:
    listed = re.findall(r"\(schemas/([a-z-]+\.json)\)", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_documents(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] in OLDER or not mistakes(document)


def test_what_is_not_as_described_is_found() -> None:
    """An unknown field, a missing one, and one of another type, at the top and deep inside."""
    good = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    for place in ((), ("device",), ("tables", 0, "rows", 3, "rates"), ("batches", 0, "whole_program", 0)):
        for change in ("unknown", "missing", "of another type"):
            document = copy.deepcopy(good)
            part: Any = document
            for step in place:
                part = part[step]
            name = "new" if change == "unknown" else next(name for name in part if name != "schema")
            if change == "missing":
                del part[name]
            else:
                part[name] = [None]
            assert mistakes(document), (place, change)
