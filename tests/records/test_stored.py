"""Stored documents are as their records say, and a document that is not is refused with the place of its fault."""

import json
from pathlib import Path

import pytest

from app.planning.tuning import SHIPPED
from docs.generate.figures import FIGURES
from tests.support.schemas import mistakes

OLDER = {"lenet5-inference/report/2"}  # stored, but no record


@pytest.mark.parametrize("path", [*FIGURES.glob("*.json"), *SHIPPED.glob("*.json")], ids=lambda path: path.stem)
def test_stored_documents(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] in OLDER or not mistakes(document)


def test_a_time_has_rates() -> None:
    """In a document of bench with one table: all of them take a second. test_derive.py has other faults."""
    document = json.loads((FIGURES / "h100_bench_lenet5.json").read_text(encoding="utf-8"))
    document |= {"tables": document["tables"][:1], "batches": document["batches"][:1]}
    row = next(row for row in document["tables"][0]["rows"] if row["ms"])
    row["rates"] = None
    assert mistakes(document)
    row["ms"] = None
    assert not mistakes(document)
