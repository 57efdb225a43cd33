"""docs/systems.md beyond op times: whole passes, training and accuracy, on made-up figures and where there are none."""

from pathlib import Path
from typing import Any

import pytest

from app.bench.training import SCHEMA
from docs.generate.__main__ import README, SYSTEMS
from docs.generate.figures import FIGURES, OLD_REPORTS, PEERS, TRAINING, Figures
from tests.bench.test_peers import DOCUMENT
from tests.docs.conftest import CPU_USED, store
from tests.docs.test_docs import cells, rows
from tests.support.bundle_for_tests import folder, release
from tests.support.peers_for_tests import CARD

__all__ = ["folder", "release"]  # fixtures

TRAINED = {"network": "mlp", "hidden": 500, "batch": 4096, "device": "Some Card", "cpu": "Some CPU"}
SHARE = {"network": "mlp", "hidden": 500, "batch": 4096}
TRAINING_DOCUMENT: dict[str, Any] = {
    "schema": SCHEMA,
    "date": "2026-01-01 00:00 UTC",
    "device": CARD,
    "cpu": CPU_USED,
    "rows": [
        {**TRAINED, "seconds_per_epoch": 0.02, "images_per_second": 3e6, "numpy_seconds_per_epoch": 1.5},
        {**TRAINED, "network": "lenet5", "hidden": None, "batch": 256, "seconds_per_epoch": 0.2}
        | {"images_per_second": 3e5, "numpy_seconds_per_epoch": 40.0},
    ],
    "shares": [{**SHARE, "kernel": "GEMM", "share": 0.6}, {**SHARE, "kernel": "update", "share": 0.4}],
}


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """The old reports alone."""
    (tmp_path / OLD_REPORTS).write_text((FIGURES / OLD_REPORTS).read_text())
    return Figures(tmp_path)


def test_what_is_not_measured_says_so(figures: Figures, release: Path) -> None:
    for name in ("mlp", "training"):
        assert "Not measured yet: run `python main.py bench --" in SYSTEMS.block(name, figures)
    assert ("column sums", "4.9%") in rows(SYSTEMS.block("training", figures))


def test_whole_pass_beside_pytorch(figures: Figures, tmp_path: Path, release: Path) -> None:
    store(DOCUMENT, tmp_path / PEERS["mlp"])
    made = SYSTEMS.block("mlp", figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, PyTorch 2.99" in made
    assert ("fp32x", "fp32", "0.5000", "3.0000", "6.00", "1.0000", "3.5000", "3.50", "") in rows(made)
    assert ("fp16", "fp16", "0.1000", "", "", "0.2000", "", "", "") in rows(made)  # PyTorch's did not run


def test_training(figures: Figures, tmp_path: Path) -> None:
    store(TRAINING_DOCUMENT, tmp_path / TRAINING)
    where = "Some Card; Some CPU"
    assert {
        ("first", "117.2", "45.7", "2.56"),
        ("`mlp`", "500", "4,096", "0.02", "3,000,000", "1.5", "75.0", where),
        ("`lenet5`", "", "256", "0.2", "300,000", "40", "200", where),
        ("kernel", "report", "mlp 500, batch 4,096"),
        ("GEMM", "74.3%", "60.0%"),
        ("update", "", "40.0%"),
    } <= rows(SYSTEMS.block("training", figures))


def test_accuracy(figures: Figures, release: Path) -> None:
    """lenet5 and mlp are shipped here, with 100 promised images."""
    found = [cells(line) for line in README.block("accuracy", figures).splitlines()[2:]]
    assert [row[0] for row in found] == [f"`{name}`" for name in PEERS for _ in range(2)]
    told = {(row[0], row[1].partition(":")[0]): row[1:] for row in found}
    assert told["`mlp`", "here"][1].endswith("%") and told["`mlp`", "here"][2:] == ["", "", ""]
    assert told["`fa19`", "here"] == ["here: not trained yet", "", "", "", ""]
    assert told["`fa19`", "report"] == ["report", "76.00%", "76.70%", "", "76.53%"]
    assert told["`k7`", "report"][0] == "report: none given"
