"""Test ``bench --training``: its output and files with a fake card, and a small run on the card."""

from itertools import accumulate
from unittest.mock import Mock

import numpy as np
import pytest

from app.bench import training
from app.cuda import device
from app.network.definitions import family
from app.network.graph import find_network
from tests.bench.conftest import Benched
from tests.support.widths import check_widths


def test_cases_are_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """lenet5 by its recipe, mlp in three widths at two batch sizes."""
    widths = {}
    for case in training.CASES:
        (first, *_) = (layer for layer in find_network(case.network).layers if layer.kind == "linear")
        widths[family(case.network), case.batch, getattr(first, "outputs", 0)] = case.hidden
    expected = {("mlp", batch, width): width for width in (100, 500, 1000) for batch in (256, 4096)}
    assert widths == {("lenet5", 256, 128): None, **expected}
    monkeypatch.setattr(training, "IMAGES", 600)
    job = training._job(training.CASES[0])
    assert (job.settings.batch, job.settings.dropout[0][0]) == (256, "fc1") and len(job.images) == len(
        job.labels
    ) == 601
    assert job.images.shape[1:] == job.model.network.input_shape


def test_table_and_json(some_card: None, benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"seconds_per_epoch": 0.25, "images_per_second": 240_000.0, "numpy_seconds_per_epoch": 50.0}
    samples = {"samples": [0.25], "numpy_samples": [50.0]}
    monkeypatch.setattr(training, "measure", lambda case, arch: (times | samples, {"GEMM": 0.75, "column sums": 0.25}))
    code, out, document = benched("--training")
    assert (code, document["schema"]) == (0, training.SCHEMA)
    assert "Some Card" in out and "GEMM 75.0%, column sums 25.0%" in out and "200x" in out and "240,000" in out
    assert len(document["rows"]) == len(training.CASES)
    check_widths(training.as_text, document)
    assert document["rows"][-1] == {**document["rows"][-1], "network": "mlp", "hidden": 1000, "batch": 4096, **times}
    assert all(row["device"] == "Some Card" and "threads" in row["cpu"] for row in document["rows"])
    assert document["shares"][0] == {"network": "lenet5", "hidden": None, "batch": 256, "kernel": "GEMM", "share": 0.75}


def test_the_first_batch_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = accumulate([0.0, 9.0, 0.0, 1.0, 0.0, 5.0, 0.0, 2.0])  # before and after each batch
    monkeypatch.setattr("app.runtime.clock.perf_counter", lambda: next(moments))
    assert training._batch_seconds(Mock(), [np.arange(3)] * 4) == pytest.approx([1.0, 5.0, 2.0])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [training.Case("lenet5", 64), training.Case("mlp_37", 50, 37)], ids=lambda case: case.network
)
def test_on_the_card(case: training.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "IMAGES", 640)
    times, shares = training.measure(case, device.describe_gpu()["architecture"])
    assert all(np.min(value) > 0 for value in times.values())
    assert len(times["samples"]) == training.EPOCHS and len(times["numpy_samples"]) == training.NUMPY_BATCHES
    assert times["images_per_second"] == pytest.approx(640 / times["seconds_per_epoch"])
    assert sum(shares.values()) == pytest.approx(1) and list(shares.values()) == sorted(shares.values(), reverse=True)
    assert {"gather", "cross entropy", "GEMM"} <= set(shares) and ("pool" in shares) == (case.network == "lenet5")
