"""docs/systems.md beyond op times: whole passes, training and accuracy, on made-up figures and where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.peers.text import ratios
from app.bench.stored_figures import FIGURES, FILES, OLD_REPORTS, PEERS, TRAINING
from app.commands.options.bench import bench_parser
from app.network.definitions import NETWORKS
from docs.generate.__main__ import README, SYSTEMS
from docs.generate.figures import Figures
from tests.bench.test_peers import ROWS
from tests.support.bundle_for_tests import folder, release
from tests.support.peers_for_tests import CARD

__all__ = ["folder", "release"]  # fixtures

PEERS_DOCUMENT: dict[str, Any] = {
    "schema": "lenet5-inference/peers/1",
    "date": "2026-01-01 00:00 UTC",
    "command": "",
    "network": "mlp",
    "device": CARD,
    "software": {"torch": "2.99"},
    "images": 10_000,
    "rounds": 7,
    "rows": ROWS,
    "ratios": ratios(ROWS),
}
TRAINED = {"network": "mlp", "hidden": 500, "batch": 4096, "device": "Some Card", "cpu": "Some CPU"}
TRAINING_DOCUMENT: dict[str, Any] = {
    "schema": "lenet5-inference/training/1",
    "rows": [
        {**TRAINED, "seconds_per_epoch": 0.02, "images_per_second": 3e6, "numpy_seconds_per_epoch": 1.5},
        {**TRAINED, "network": "lenet5", "hidden": None, "batch": 256, "seconds_per_epoch": 0.2}
        | {"images_per_second": 3e5, "numpy_seconds_per_epoch": 40.0},
    ],
    "shares": [
        {"network": "mlp", "hidden": 500, "batch": 4096, "kernel": "GEMM", "share": 0.6},
        {"network": "mlp", "hidden": 500, "batch": 4096, "kernel": "update", "share": 0.4},
    ],
}


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """The old reports alone."""
    (tmp_path / OLD_REPORTS).write_text((FIGURES / OLD_REPORTS).read_text())
    return Figures(tmp_path)


def test_what_is_not_measured_says_so(figures: Figures, release: Path) -> None:
    for name in ("mlp", "training"):
        assert "Not measured yet: run `python main.py bench --" in SYSTEMS.block(name, figures)
    assert "| column sums | 4.9% |" in SYSTEMS.block("training", figures)


def test_whole_pass_beside_pytorch(figures: Figures, tmp_path: Path, release: Path) -> None:
    (tmp_path / PEERS["mlp"]).write_text(json.dumps(PEERS_DOCUMENT))
    made = SYSTEMS.block("mlp", figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, PyTorch 2.99" in made
    assert "| fp32x | fp32 | 0.5000 | 3.0000 | 6.00 | 1.0000 | 3.5000 | 3.50 |  |" in made
    assert "| fp16 | fp16 | 0.1000 |  |  | 0.2000 |  |  |  |" in made  # PyTorch's did not run


def test_training(figures: Figures, tmp_path: Path) -> None:
    (tmp_path / TRAINING).write_text(json.dumps(TRAINING_DOCUMENT))
    made = SYSTEMS.block("training", figures)
    assert "| first | 117.2 | 45.7 | 2.56 |" in made
    assert "| `mlp` | 500 | 4,096 | 0.02 | 3,000,000 | 1.5 | 75.0 | Some Card; Some CPU |" in made
    assert "| `lenet5` |  | 256 | 0.2 | 300,000 | 40 | 200 | Some Card; Some CPU |" in made
    assert "| kernel | report | mlp 500, batch 4,096 |" in made
    assert "| GEMM | 74.3% | 60.0% |" in made and "| update |  | 40.0% |" in made


def test_accuracy(figures: Figures, release: Path) -> None:
    """lenet5 and mlp are shipped here, with 100 promised images."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in README.block("accuracy", figures).splitlines()]
    assert [row[0] for row in rows[2:]] == [f"`{name}`" for name in NETWORKS for _ in range(2)]
    told = {(row[0], row[1].partition(":")[0]): row[1:] for row in rows[2:]}
    assert told["`mlp`", "here"][1].endswith("%") and told["`mlp`", "here"][2:] == ["", "", ""]
    assert told["`fa19`", "here"] == ["here: not trained yet", "", "", "", ""]
    assert told["`fa19`", "report"] == ["report", "76.00%", "76.70%", "", "76.53%"]
    assert told["`k7`", "report"][0] == "report: none given"


@pytest.mark.parametrize("network", NETWORKS)
def test_the_commands_shown_are_commands(network: str) -> None:
    options = bench_parser().parse_args(FILES[PEERS[network]][1].split()[3:])
    assert options.peers and (options.network, options.json) == (network, f"docs/benchmarks/{PEERS[network]}")
