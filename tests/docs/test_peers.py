"""Test the tables that put ours beside the fastest other system, and which of several runs they show."""

from pathlib import Path
from typing import Any

from docs.generate import systems
from docs.generate.__main__ import BENCHMARKS, SYSTEMS
from docs.generate.figures import COMPARED, FIGURES, PEERS, Figures
from tests.docs.conftest import store
from tests.docs.test_docs import rows
from tests.lab.test_peers import DOCUMENT, KNOWN, ROWS, comparison, row_of

LATER = DOCUMENT | {"date": "2026-02-02 00:00 UTC"}


def test_whole_pass_beside_the_fastest_peer(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Our losses are bold; a row whose peers' settings were not all tried says so and has no ratio."""
    store(DOCUMENT | {"notes": ["None: python main.py"]}, tmp_path / PEERS["mlp"])
    made = SYSTEMS.render_block("mlp", no_figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, torch 2.99, jax 0.9" in made
    first, second, best = "JAX jit", "PyTorch eager, contiguous", "torch.compile max-autotune, channels last"
    assert ("fp32x", "0.5000", "2.0000", "4.00", first, "1.0000", "3.5000", "3.50", second) in rows(made)
    halves = ("0.1000", "0.0900", "**0.90**", best, "0.2000", "2.4000", "12.0", best)
    assert ("fp16", *halves) in rows(made)
    unknown = ("tf32", "1.0000", "", "", KNOWN["tf32"], "1.0000", "", "", "")
    assert unknown in rows(made) and ("int8", "not served", *[""] * 7) in rows(made)
    assert "None: `python main.py`." in made
    block = BENCHMARKS.render_block("peers", no_figures)
    table = rows(block)
    assert {("`mlp`, 10,000 images", "fp16", *halves), ("`mlp`, 10,000 images", *unknown)} <= table
    assert not [row for row in table if "int8" in row]
    assert "- `mlp`, 10,000 images, fp16: not known; ours ran " in block and block.count("fp16: ") == 1
    assert len(COMPARED) >= 9
    for network in COMPARED:
        asked = f"- `{network}`: Not measured yet: run `python main.py bench --peers --network {COMPARED[network]} "
        assert (asked in block) == (network != "mlp")
    goals = rows(SYSTEMS.render_block("goals", no_figures))
    assert ("`mlp`", "fp16", "on the card", "0.1000", "≤ 0.02", "0.012", "**no**", "0.90", "≥ 3", "**no**") in goals
    assert ("`mlp`", "fp32x", "end to end", "1.0000", "≤ 0.185", "0.165", "**no**", "3.50", "≥ 1.1", "yes") in goals


def test_the_latest_run_of_each_row_counts(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Whatever file it is in; one may hold several networks."""
    store(DOCUMENT, tmp_path / PEERS["mlp"])
    newer = [row_of("ours", "", "fp16", 0.05, 0.1), *ROWS[1:3], ROWS[4]]
    several = [comparison(newer), comparison(ROWS, "lenet5", 1), comparison(ROWS, "another")]
    store(LATER | {"comparisons": several}, tmp_path / "h100_peers_a.json")
    table = rows(BENCHMARKS.render_block("peers", no_figures))
    times = {(row[0], row[1]): row[2] for row in table}
    assert times["`mlp`, 10,000 images", "fp16"] == "0.0500" and times["`mlp`, 10,000 images", "fp32x"] == "0.5000"
    assert times["`lenet5`, one image", "fp16"] == times["`another`, 10,000 images", "fp16"] == "0.1000"
    assert "2026-01-01 00:00 UTC, 2026-02-02 00:00 UTC" in SYSTEMS.render_block("mlp", no_figures)
    commands = SYSTEMS.render_block("commands", no_figures)
    assert commands.count("h100_peers_a.json") == commands.count(PEERS["mlp"]) == 1
    assert commands.count("bench --peers --network") == len(COMPARED) - 2


def test_a_peer_without_times_says_why(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    broken: Any = row_of("torch", "default, contiguous", "fp16", None, reason="out of memory")
    store(DOCUMENT | {"comparisons": [comparison([*ROWS, broken])]}, tmp_path / PEERS["mlp"])
    made = " ".join(SYSTEMS.render_block("mlp", no_figures).split())
    assert made.count("torch.compile default, contiguous in fp16 has no times: out of memory.") == 1


def test_reasons_of_losses_are_of_losses() -> None:
    """A reason is written for what the stored figures show to be slower, and for nothing else."""
    found = Figures(FIGURES).comparisons
    for key in systems.WHY_SLOWER:
        _, one = found[key]
        pairs = (systems.pair_with_fastest_peer(one, key[2], measure) for measure in systems.MEASURES)
        assert any(pair.lost for pair in pairs), key
