"""Test which of several runs beside other systems a document shows."""

from typing import Any

from docs.generate.figures import PEERS, PEERS_IN_ONE, Figures
from docs.generate.peers import ON_CARD, TITLES, _absent, ours, whole_pass

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

    def optional(self, name: str) -> dict[str, Any] | None:
        return self._runs[name]


def test_the_run_with_the_closest_peer_counts() -> None:
    far, close, none = run(**{"jax-jit": 9.0}), run(**{"torch-eager": 3.0}), run(**{"jax-jit": "broken"})
    for runs, chosen in [((far, close), close), ((close, far), close), ((none, far), far), ((far, None), far)]:
        assert ours(Stored(*runs), FILE)["fp32"][0] is chosen  # type: ignore[arg-type]


def test_reasons_are_those_of_systems_that_no_run_measured() -> None:
    late = "not tried: 25 s of trials were over"
    measured: dict[str, float | str] = {"jax-jit": 9.0, "torch-eager": "broken", "onnx-runtime": late}
    first = run(**measured)
    second = run(**{"jax-jit": late, "torch-eager": late, "onnx-runtime": late})
    assert [*_absent([first, second])] == [f"ONNX Runtime in fp32: {late}.", "PyTorch in fp32: broken."]


def test_runs_of_one_minute_are_all_looked_at() -> None:
    """Two cards may have measured at the same time: what one run timed has no reason in another's name."""
    figures = Figures()
    fp32, fp16 = (figures[PEERS_IN_ONE["lenet5", precision]] for precision in ("fp32", "fp16"))
    for run in (fp32, fp16):
        run["date"] = "2026-11-23 03:38 UTC"
    timed = [row for row in fp32["rows"] if row["precision"] == "fp32" and not row["reason"]]
    about, *text = whole_pass("lenet5", figures).split("\n\n")
    assert about.count("2026-11-23 03:38 UTC") == 1
    reasons = " ".join(text)
    assert {row["engine"] for row in timed} > {"ours"}
    assert not [row for row in timed if f"{TITLES.get(row['engine'])} in fp32" in reasons]
