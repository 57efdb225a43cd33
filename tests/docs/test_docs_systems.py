"""docs/systems.md beyond op times: whole passes, training and accuracy, on made-up figures and where there are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.peers.text import ratios
from app.commands.options.common import parser_of
from docs.generate.__main__ import README, SYSTEMS
from docs.generate.checks import mistakes
from docs.generate.figures import FIGURES, OLD_REPORTS, PEERS, TRAINING, Figures, command_of
from tests.bench.test_peers import ROWS
from tests.docs.test_docs import cells, rows
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
SHARE = {"network": "mlp", "hidden": 500, "batch": 4096}
TRAINING_DOCUMENT: dict[str, Any] = {
    "schema": "lenet5-inference/training/1",
    "date": "2026-01-01 00:00 UTC",
    "device": CARD,
    "cpu": {"kind": "cpu", "name": "Some CPU", "threads": 2, "numpy": "2.0"},
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
    (tmp_path / PEERS["mlp"]).write_text(json.dumps(PEERS_DOCUMENT))
    made = SYSTEMS.block("mlp", figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, PyTorch 2.99" in made
    assert ("fp32x", "fp32", "0.5000", "3.0000", "6.00", "1.0000", "3.5000", "3.50", "") in rows(made)
    assert ("fp16", "fp16", "0.1000", "", "", "0.2000", "", "", "") in rows(made)  # PyTorch's did not run


def test_training(figures: Figures, tmp_path: Path) -> None:
    (tmp_path / TRAINING).write_text(json.dumps(TRAINING_DOCUMENT))
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


def test_the_documents_made_up_here_are_as_described() -> None:
    for name, document in (("peers", PEERS_DOCUMENT), ("training", TRAINING_DOCUMENT)):
        assert not mistakes(name, json.loads(json.dumps(document)))


@pytest.mark.parametrize("network", PEERS)
def test_the_commands_shown_are_commands(network: str) -> None:
    options = parser_of("bench").parse_args(command_of(PEERS[network]).split()[3:])
    assert options.peers and (options.network, options.json) == (network, f"docs/benchmarks/{PEERS[network]}")
