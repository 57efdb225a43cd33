"""Test the tables that put ours beside the fastest other system, and which of several runs they show."""

from pathlib import Path
from typing import Any

from app.lab.peers.peers import ENGINES, OURS
from app.lab.peers.text import speedups_over_peers
from docs.generate.__main__ import BENCHMARKS, SYSTEMS
from docs.generate.figures import PEERS, PEERS_IN_ONE, Figures
from docs.generate.systems import NO_LONGER_TIMED, ON_CARD, TITLES, _missing_rows, network_comparison, our_rows
from tests.docs.conftest import store
from tests.docs.test_docs import rows
from tests.lab.test_peers import DOCUMENT, ROWS, row_of

FILE = PEERS["mlp"]


def run(**times: float | str) -> dict[str, Any]:
    """A run in fp32 in which ours takes 1 ms; engine → its time in ms, or why there is none."""
    rows = [
        {"engine": name, "precision": "fp32", "reason": found, ON_CARD: None}
        if isinstance(found, str)
        else {"engine": name, "precision": "fp32", "reason": "", ON_CARD: {"p50": found}}
        for name, found in {"ours": 1.0, **times}.items()
    ]
    best = min((name for name, found in times.items() if not isinstance(found, str)), key=times.__getitem__, default="")
    ratios = [{"precision": "fp32", "against": "fp32", ON_CARD: {"best": best or None}}]
    return {"rows": rows, "ratios": ratios}


class Stored:
    def __init__(self, *runs: dict[str, Any] | None) -> None:
        self._runs = dict(zip((FILE, PEERS_IN_ONE["mlp", "fp32"]), runs, strict=True))

    def document_or_none(self, name: str) -> dict[str, Any] | None:
        return self._runs[name]


def test_the_run_with_the_closest_peer_counts() -> None:
    far, close, none = run(**{"jax-jit": 9.0}), run(**{"torch-eager": 3.0}), run(**{"jax-jit": "broken"})
    for runs, chosen in [((far, close), close), ((close, far), close), ((none, far), far), ((far, None), far)]:
        assert our_rows(Stored(*runs), FILE)["fp32"][0] is chosen  # type: ignore[arg-type]


def test_reasons_are_those_of_systems_that_no_run_measured() -> None:
    late = "not tried: 25 s of trials were over"
    measured: dict[str, float | str] = {"jax-jit": 9.0, "torch-eager": "broken", "onnx-runtime": late}
    first = run(**measured)
    second = run(**{"jax-jit": late, "torch-eager": late, "onnx-runtime": late})
    assert [*_missing_rows([first, second])] == [
        f"Not measured in this comparison: ONNX Runtime in fp32. Reason: {late}.",
        "Not measured in this comparison: PyTorch in fp32. Reason: broken.",
    ]


def test_runs_of_one_minute_are_all_looked_at() -> None:
    """Two cards may have measured at the same time: what one run timed has no reason in another's name."""
    figures = Figures()
    fp32, fp16 = (figures[PEERS_IN_ONE["lenet5", precision]] for precision in ("fp32", "fp16"))
    for run in (fp32, fp16):
        run["date"] = "2026-11-23 03:38 UTC"
    timed = [row for row in fp32["rows"] if row["precision"] == "fp32" and not row["reason"]]
    about, *text = network_comparison("lenet5", figures).split("\n\n")
    assert about.count("2026-11-23 03:38 UTC") == 1
    reasons = " ".join(text)
    assert {row["engine"] for row in timed} > {"ours"}
    assert not [row for row in timed if f"{TITLES.get(row['engine'])} in fp32" in reasons]


def test_whole_pass_beside_the_fastest_peer(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Our losses are bold; a peer without times says why, and so does a system without rows."""
    lost = row_of("jax-jit", "fp16", 0.08, 2.4, settings={"on_card_ms": "pieces", "end_to_end_ms": "whole"})
    found = [row for row in ROWS if (row["engine"], row["precision"]) != ("jax-jit", "fp16")] + [lost]
    store(
        DOCUMENT | {"rows": found, "ratios": speedups_over_peers(found), "notes": ["None: python main.py"]},
        tmp_path / PEERS["mlp"],
    )
    made = SYSTEMS.render_block("mlp", no_figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, torch 2.99, jax 0.9" in made
    one, other = "JAX (fp32)", "PyTorch (fp32)"
    assert ("fp32x", "0.5000", "2.0000", "4.00", one, "1.0000", "3.5000", "3.50", other) in rows(made)
    halves = ("0.1000", "0.0800", "**0.80**", "JAX (fp16, pieces)", "0.2000", "2.4000", "12.0", "JAX (fp16, whole)")
    assert ("fp16", *halves) in rows(made)
    assert "Not measured in this comparison: PyTorch in fp16. Reason: PyTorch is not installed." in made
    assert "None: `python main.py`." in made
    table = rows(BENCHMARKS.render_block("peers", no_figures))
    assert ("`mlp`", "fp16", *(cell.partition(" (")[0] for cell in halves)) in table
    asked = rows(SYSTEMS.render_block("goals", no_figures))
    assert ("`mlp`", "fp16", "on the card", "0.1000", "≤ 0.02", "0.012", "**no**", "0.80", "≥ 3", "**no**") in asked
    assert ("`mlp`", "fp32x", "end to end", "1.0000", "≤ 0.185", "0.165", "**no**", "3.50", "≥ 1.1", "yes") in asked


def test_every_peer_has_a_title() -> None:
    assert {OURS, *TITLES} == {*ENGINES, *NO_LONGER_TIMED}
