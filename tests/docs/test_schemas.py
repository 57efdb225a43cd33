"""JSON documents: their descriptions in docs/schemas/, what is stored or written, and what commands read of them."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from app.bench import classify_costs, scenario, training
from app.bench.check import job as check
from app.bench.graphs import network_graph
from app.bench.ladder import results
from app.bench.ladder.cases import network_items
from app.bench.peers import peers
from app.bench.profile import every_step, job
from app.bench.sweep import pipeline, text
from app.classify import receipts
from app.classify import report as classification
from app.commands import (
    accuracy,
    cache,
    compare,
    doctor,
    export,
    graph,
    import_,
    kernels,
    networks,
    precompile,
    predict,
)
from app.errors import UserError
from app.evaluate import results as evaluation
from app.files.checks import BadValueError, Check, parsed_json
from app.kernels.facts import key
from app.lessons import command as ladder
from app.planning import tuning
from app.planning.tuning import Tuning
from app.precision import SHORT
from app.report import SCHEMA as REPORT
from app.runtime.stream_buffers import AtOnce, Direct
from app.training.results import SCHEMA as TRAIN
from docs.generate import systems
from docs.generate.__main__ import DOCUMENTS
from docs.generate.figures import (
    BENCH,
    FIGURES,
    FILES,
    OLD_REPORTS,
    ONE_IMAGE,
    ORIGINALS,
    PEERS,
    PEERS_IN_ONE,
    SCHEMAS,
    Figures,
    check_of,
)
from tests.classify import scale
from tests.fuzz.mutate import garbled
from tests.support.schemas import mistakes

WRITERS = (
    cache,
    classify_costs,
    doctor,
    results,
    peers,
    job,
    every_step,
    scenario,
    pipeline,
    text,
    training,
    accuracy,
    classification,
    compare,
    evaluation,
    kernels,
    graph,
    precompile,
    predict,
    import_,
    export,
    check,
    ladder,
    networks,
    receipts,
    tuning,
    scale,
)
DESCRIPTIONS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(SCHEMAS.glob("*.json"))}
# Stored, but not described: reports of the version before, and what people copied from the old systems.
OLDER = {"lenet5-inference/report/2", "lenet5-inference/old-reports/1", "lenet5-inference/original-weights/1"}
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


def test_reports_have_every_way_that_images_take_to_the_card() -> None:
    (found,) = (part["images"]["enum"] for part in parts(DESCRIPTIONS["report"]) if "enum" in part.get("images", ()))
    assert sorted(found) == sorted([Direct.how, AtOnce.how, "copied in chunks"])


def test_every_description_is_listed() -> None:
    listed = re.findall(r"\(schemas/([a-z-]+)\.json\)", (SCHEMAS.parent / "json.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(DESCRIPTIONS)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_documents(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] in OLDER or not mistakes(document)


def short_bench() -> Any:
    """A stored document of bench with fewer rows: to check all of them takes a second."""
    document = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    document["tables"] = [{**table, "rows": table["rows"][:4]} for table in document["tables"][:2]]
    document["batches"] = [{**batch, "totals": batch["totals"][:2]} for batch in document["batches"][:1]]
    return document | {"totals": document["totals"][:2]}


@pytest.mark.parametrize("change", ["unknown", "missing", "of another type"])
@pytest.mark.parametrize(
    "place",
    [(), ("device",), ("tables", 0, "rows", 3), ("tables", 0, "rows", 3, "rates"), ("batches", 0, "whole_program", 0)],
    ids=str,
)
def test_what_is_not_as_described_is_found(place: tuple[str | int, ...], change: str) -> None:
    """An unknown field, a missing one, and one of another type, at the top and deep inside."""
    document = short_bench()
    part: Any = reduce(lambda inner, step: inner[step], place, document)
    name = "new" if change == "unknown" else next(name for name in part if name != "schema")
    if change == "missing":
        del part[name]
    else:
        part[name] = [None]
    assert mistakes(document)


def test_a_time_has_rates() -> None:
    document = short_bench()
    row = next(row for row in document["tables"][0]["rows"] if row["ms"])
    row["rates"] = None
    assert mistakes(document)
    row["ms"] = None
    assert not mistakes(document)


# --- altered at random: refused in one line, or good for all that is made of it

COUNT = 1000


def taken(rng: random.Random, kinds: Sequence[tuple[Check, Any]], count: int = COUNT) -> Iterator[tuple[int, Any]]:
    """``count`` documents made of good ones of each kind: those that their check takes, with the kind's index.

    Some are taken, some refused.
    """
    refused = 0
    for number in range(count):
        check, good = kinds[number % len(kinds)]
        try:
            found = check(parsed_json(garbled(rng, good)))
        except BadValueError as error:
            assert str(error).isprintable() and len(str(error)) < 500
            refused += 1
        else:
            yield number % len(kinds), found
    assert 0 < refused < count * 19 / 20


def test_figures_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each that is taken, some of the blocks are written."""
    monkeypatch.setattr(systems, "shipped_weights", dict)  # reading the weights takes a second
    rng = random.Random(17)
    good = {name: json.loads((FIGURES / name).read_text()) for name in (*FILES, OLD_REPORTS, *ORIGINALS.values())}
    for bench in (good[name] for name in BENCH.values()):  # fewer rows, so that what matters is hit more often
        for table in bench["tables"]:
            table["rows"] = table["rows"][:4]
        for part in (bench, *bench["batches"]):
            part["totals"] = part["totals"][:6]
    peers = [good[name] for name in (*PEERS.values(), *PEERS_IN_ONE.values(), *ONE_IMAGE.values())]
    for row in (row for document in peers for row in document["rows"]):
        row["tried"] = row["tried"][:1]
        for measured in (row["on_card_ms"], row["end_to_end_ms"]):
            if measured is not None:
                measured["samples"] = measured["samples"][:3]
    names, checked = list(good), {name: check_of(name)(document) for name, document in good.items()}
    blocks = [(document, block) for document in DOCUMENTS for block in document.blocks]
    for kind, found in taken(rng, [(check_of(name), good[name]) for name in names], 160):
        figures = Figures()
        figures.update({**checked, names[kind]: found})
        for document, block in rng.sample(blocks, 3):
            with suppress(UserError):
                document.block(block, figures)


def test_tuning_tables() -> None:
    """By which kernels are chosen."""
    rng = random.Random(16)
    card = tuning.REFERENCE_CARDS["sm_90a"]
    shipped = json.loads((tuning.SHIPPED / tuning.file_name(card)).read_text())
    items = {item.name: item for item in network_items(network_graph("lenet5"))}
    problems = [items[name].problems["float32"] for name in ("conv2", "fc1")]
    few = {**shipped, "entries": {key(problem): shipped["entries"][key(problem)] for problem in problems}}
    for _, table in taken(rng, [(tuning.TABLE, few)]):
        found = Tuning(table["entries"])
        assert rng.random() < 0.5 or all(found.choose(problem, "sm_90a") for problem in problems)
