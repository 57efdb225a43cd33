"""Provide what tests of ``bench`` share: a card, its document, engines for ``--peers``, and a batch without files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.lab.batch import UNWRITTEN, Batch
from app.lab.bench.results import Table, convolution_totals, table_record
from app.lab.peers.rounds import OURS, Candidate, Engine, Entrant
from app.network.definitions import LENET5, Network
from app.network.reference import compute_reference
from app.network.weights import Weights
from app.records.parts import Peaks
from tests.support.networks_for_tests import random_graph, random_images

CARD = {"kind": "cuda", "name": "Some Card", "architecture": "sm_90a", "multiprocessors": 132, "memory_bytes": 1 << 36}
CARD |= {"driver": None, "driver_cuda": "13.0", "cuda": "13.0", "cupy": "14"}
CPU_USED = {"kind": "cpu", "name": "Some CPU", "threads": 2, "numpy": "2.0"}


def bench_document(
    network: str, tables: Sequence[Table], peaks: Peaks, programs: Sequence[dict[str, Any]], sizes: Sequence[int]
) -> dict[str, Any]:
    """Return a document as ``bench`` writes it, with equal times for all batch sizes."""
    return {
        "schema": "lenet5-inference/bench/1",
        "date": "2026-01-01 00:00 UTC",
        "subject": f"network {network}",
        "device": CARD,
        "cpu": CPU_USED,
        "images": sizes[-1],
        "settings": {"noise": 0.01, "l2": "cold", "rule": "the rule"},
        "peaks": peaks,
        "tables": [table_record(table, peaks) for table in tables],
        "totals": convolution_totals(tables),
        "batches": [
            {"images": size, "totals": convolution_totals(tables), "whole_program": programs} for size in sizes
        ],
        "whole_program": programs,
        "notes": ["something"],
    }


def small_batch(network: Network = LENET5, count: int = 40) -> Batch:
    """Return a batch of noise images with random weights; the float64 reference also gives the true labels."""
    graph = random_graph(network)
    images = random_images(graph.network, count)
    reference = compute_reference(graph, images)
    weights = Weights(dict(graph.parameters), network.name, Path("random"), input_scale=graph.input_scale)
    return Batch(graph, weights, images, reference.labels, reference)


class FakeEngine(Engine):
    """An engine that returns ``answer`` as labels, and records its calls in ``diary``."""

    note = "a note"

    def __init__(self, answer: np.ndarray, labels: np.ndarray, diary: list[str], name: str) -> None:
        self.answer, self.labels, self.diary, self.name = answer, labels, diary, name
        self.upload_images()

    def upload_images(self) -> None:
        self.card = np.full_like(self.answer, UNWRITTEN)

    def enqueue(self) -> None:
        self.card[:] = self.answer

    def synchronize(self) -> None: ...

    def download_labels(self) -> np.ndarray:
        return self.card

    def poison_buffers(self) -> None: ...

    def run(self) -> None:
        assert (self.labels == UNWRITTEN).all()
        self.diary.append(self.name)
        self.labels[:] = self.answer

    def close(self) -> None:
        self.diary.append(f"{self.name} closed")


class OurFake(FakeEngine):
    """A fake engine that the accuracy check judges."""

    arithmetic = "float32"


def fake(
    name: str, answer: np.ndarray, diary: list[str], kind: type[FakeEngine] = FakeEngine, *, ours: bool = False
) -> Candidate:
    """Return a candidate that makes a ``FakeEngine``."""
    engine, setting = (OURS, "") if ours else ("torch", name)
    return Candidate(engine, setting, "fp32", lambda _, __, labels: kind(answer, labels, diary, name))


def entrants(found: list[Candidate], count: int = 40) -> list[Entrant]:
    """Return an entrant for each candidate, with separate pageable label arrays."""
    return [Entrant(candidate, np.empty(count, np.uint8)) for candidate in found]
