"""Test ``bench --scenario`` with a fake session: its queries, derived figures, text and JSON."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.bench import scenario
from app.bench.batch import UNWRITTEN
from app.bench.scenario import QUERIES, WARMUP, as_text, offline, single_stream
from app.cli import main
from app.errors import UserError
from app.network.definitions import NETWORKS
from app.precision import PRECISIONS
from tests.bench.conftest import Benched
from tests.support.peers_for_tests import CARD, small_batch
from tests.support.schemas import check_described
from tests.support.widths import check_widths


class FakeSession:
    """The label of an image is its first pixel; every query is kept."""

    def __init__(self) -> None:
        self.queries: list[np.ndarray] = []

    def outputs(self, count: int) -> Any:
        return SimpleNamespace(labels=np.zeros(count, np.uint8))

    def run(self, images: np.ndarray, outputs: Any) -> None:
        self.queries.append(images.copy())
        assert (outputs.labels == UNWRITTEN).all() or len(self.queries) <= WARMUP
        outputs.labels[:] = images[:, 0, 0, 0]


def numbered(count: int) -> np.ndarray:
    images = np.zeros((count, 1, 28, 28), np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    return images


def test_single_stream_asks_for_every_image_once_after_the_warm_up() -> None:
    session = FakeSession()
    labels, latencies = single_stream(session, numbered(60), np.empty((1, 1, 28, 28), np.uint8))
    assert labels.tolist() == list(range(60)) and len(latencies) == 60 and min(latencies) > 0
    assert [query[0, 0, 0, 0] for query in session.queries[WARMUP:]] == list(range(60))
    assert all(query.shape == (1, 1, 28, 28) for query in session.queries)


def test_offline_asks_for_all_at_once() -> None:
    session = FakeSession()
    labels, latencies, identical, unsteady = offline(session, numbered(60), np.empty((60, 1, 28, 28), np.uint8))
    assert unsteady == 0
    assert labels.tolist() == list(range(60)) and len(latencies) == len(identical) == QUERIES
    assert all(len(query) == 60 for query in session.queries)
    first_pixels = [set(query[:, 0, 0, 0]) for query in session.queries]
    assert all(len(pixels) == 60 for pixels in first_pixels[::2]) and all(p == {0} for p in first_pixels[1::2])


def test_offline_counts_queries_with_other_labels() -> None:
    class Unsteady(FakeSession):
        def run(self, images: np.ndarray, outputs: Any) -> None:
            super().run(images, outputs)
            outputs.labels[1] += len(self.queries) in (8, 9)

    assert offline(Unsteady(), numbered(60), np.empty((60, 1, 28, 28), np.uint8))[3] == 2


@pytest.mark.parametrize("name", ["offline", "single-stream"])
def test_command(
    name: str, some_card: None, benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "load_batch", lambda network, count: small_batch(NETWORKS[network], count))
    latency = {"p10": 1.0, "p50": 2.0, "p90": 3.0, "p99": None, "runs": 40}
    times = {"latency_ms": latency, "identical_ms": latency, "samples_per_s": 20_000.0}

    def measured(own: str, batch: Any, precision: str, card: Any) -> dict[str, Any]:
        if precision == "tf32":
            return {"precision": precision, "reason": "not on this card", "wrong": False}
        row = {"precision": precision, "reason": "", "wrong": precision == "fp16", "correct": 38, "changed": 2}
        return row | times

    monkeypatch.setattr(scenario, "measured", measured)
    code, text, document = benched(f"--scenario {name} --batch 40")
    assert (code, document["schema"], document["scenario"]) == (1, "lenet5-inference/scenario/1", name)
    assert [row["precision"] for row in document["rows"]] == [*PRECISIONS]
    assert as_text(document) + "\n" == text
    check_widths(as_text, document)
    assert "not on this card" in text and "WRONG" in text and "3.0000" in text
    assert ("20,000" in text) == (name == "offline")
    assert main(["bench", "--scenario", name, "--precision", "fp32", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["precision"] == "fp32"


def test_a_precision_that_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")

    monkeypatch.setattr(scenario, "plan", Mock(side_effect=UserError("no kernel")))
    assert scenario.measured("offline", small_batch(), "fp16", CARD)["reason"] == "no kernel"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["offline", "single-stream"])
def test_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.json"
    assert main(["bench", "--scenario", name, "--batch", "300", "--json", str(path)]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    check_described(document)
    rows = document["rows"]
    assert any(row["precision"] == "fp32" and row["latency_ms"]["p50"] > 0 for row in rows)
    assert all(row["reason"] or row["latency_ms"]["p50"] <= row["latency_ms"]["p90"] for row in rows)
