"""Test the tables that put ours beside the fastest other system."""

from pathlib import Path

from app.lab.peers.peers import ENGINES, OURS
from app.lab.peers.text import ratios
from docs.generate.__main__ import BENCHMARKS, SYSTEMS
from docs.generate.figures import PEERS, Figures
from docs.generate.peers import NO_LONGER_TIMED, TITLES
from tests.docs.conftest import store
from tests.docs.test_docs import rows
from tests.lab.test_peers import DOCUMENT, ROWS, row_of


def test_whole_pass_beside_the_fastest_peer(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Our losses are bold; a peer without times says why, and so does a system without rows."""
    lost = row_of("jax-jit", "fp16", 0.08, 2.4, settings={"on_card_ms": "pieces", "end_to_end_ms": "whole"})
    found = [row for row in ROWS if (row["engine"], row["precision"]) != ("jax-jit", "fp16")] + [lost]
    store(
        DOCUMENT | {"rows": found, "ratios": ratios(found), "notes": ["None: python main.py"]}, tmp_path / PEERS["mlp"]
    )
    made = SYSTEMS.block("mlp", no_figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, torch 2.99, jax 0.9" in made
    one, other = "JAX (fp32)", "PyTorch (fp32)"
    assert ("fp32x", "0.5000", "2.0000", "4.00", one, "1.0000", "3.5000", "3.50", other) in rows(made)
    halves = ("0.1000", "0.0800", "**0.80**", "JAX (fp16, pieces)", "0.2000", "2.4000", "12.0", "JAX (fp16, whole)")
    assert ("fp16", *halves) in rows(made)
    assert "PyTorch in fp16: PyTorch is not installed." in made and "None: `python main.py`." in made
    table = rows(BENCHMARKS.block("peers", no_figures))
    assert ("`mlp`", "fp16", *(cell.partition(" (")[0] for cell in halves)) in table
    asked = rows(SYSTEMS.block("goals", no_figures))
    assert ("`mlp`", "fp16", "on the card", "0.1000", "≤ 0.02", "0.012", "**no**", "0.80", "≥ 3", "**no**") in asked
    assert ("`mlp`", "fp32x", "end to end", "1.0000", "≤ 0.185", "0.165", "**no**", "3.50", "≥ 1.1", "yes") in asked


def test_every_peer_has_a_title() -> None:
    assert {OURS, *TITLES} == {*ENGINES, *NO_LONGER_TIMED}
