"""Stored documents are as their records say, and a document that is not is refused with the place of its fault."""

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from app.planning.tuning import SHIPPED
from docs.generate.figures import FIGURES
from tests.support.schemas import mistakes

OLDER = {"lenet5-inference/report/2"}  # stored, but no record


@pytest.mark.parametrize("path", [*FIGURES.glob("*.json"), *SHIPPED.glob("*.json")], ids=lambda path: path.stem)
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
