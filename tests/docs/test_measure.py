"""Single measurements of docs/measure: what they write is as described, and as its text says."""

import pytest

from docs.measure import classify_costs
from tests.support.schemas import mistakes


def test_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.1, "ROUNDS": 2, "HASHED_BYTES": 1000, "WORKERS": 1, "LABELS": (7,)}.items():
        monkeypatch.setattr(classify_costs, name, value)
    document = classify_costs.measured()
    assert not mistakes(document)
    (row,) = document["cluster"]
    assert (row["workers"], row["labels"]) == (1, 7) and row["pieces"] > 0
    text = classify_costs.as_text(document, 80)
    assert "open IDX, gzip" in text and all(len(line) <= 80 for line in text.splitlines())
