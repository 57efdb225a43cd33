"""How ``bench --peers`` measures: in turn, every output checked, failures kept apart; and the frameworks' networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import pytest

from app.bench.batch import UNWRITTEN
from app.bench.peers import jax, torch
from app.bench.peers.jax import JaxEngine
from app.bench.peers.peers import OURS
from app.bench.peers.pieces import piece_size
from app.bench.peers.rounds import Candidate, Engine, in_turn, one_line
from app.bench.peers.torch import Setting, TorchEngine, own_code, settings
from app.errors import UserError
from app.layers import Resize
from app.network.definitions import NETWORKS
from tests.support.peers_for_tests import FakeEngine, OurFake, entrants, fake, small_batch


def test_engines_run_in_turn_and_are_closed(few_runs: None) -> None:
    diary: list[str] = []
    steps: list[int] = []
    batch = small_batch()
    found = entrants([fake(name, batch.truth, diary) for name in "abc"])
    in_turn(found, batch, 2, lambda: steps.append(1))
    order = [name for index, name in enumerate(diary) if index == 0 or diary[index - 1] != name]
    assert order == [*"abc", *"abc", *"bca", "a closed", "b closed", "c closed"]
    assert len(steps) == 9
    rows = [entrant.row(batch) for entrant in found]
    assert all(row["end_to_end_ms"]["runs"] >= 4 and row["on_card_ms"]["runs"] == 2 for row in rows)
    assert all((row["correct"], row["changed"], row["unsteady"], row["wrong"]) == (40, 0, 0, False) for row in rows)
    assert rows[0]["note"] == "a note"


def test_rows_that_cannot_run_say_why(few_runs: None) -> None:
    diary: list[str] = []
    batch = small_batch()

    class Breaks(FakeEngine):
        def run(self) -> None:
            if len(self.diary) > 3:
                raise RuntimeError("device\nlost")
            super().run()

    def never(*_: Any) -> Engine:
        raise ImportError("no such framework")

    found = entrants([fake("b", batch.truth, diary, Breaks), Candidate("n", "fp32", False, {"": never})])
    in_turn([*found, *entrants([fake("a", batch.truth, diary)])], batch, 3, lambda: None)
    rows = [entrant.row(batch) for entrant in found]
    assert [row["reason"] for row in rows] == ["device lost", "no such framework"]
    assert all(row["on_card_ms"] is None and row["correct"] is None and not row["wrong"] for row in rows)
    assert diary.count("b closed") == 1 and diary[-1] == "a closed"


def test_our_own_faults_are_faults(few_runs: None) -> None:
    batch = small_batch()

    def broken(error: Exception) -> Callable[..., Engine]:
        def make(*_: Any) -> Engine:
            raise error

        return make

    (refused,) = entrants([Candidate(OURS, "fp32", True, {"": broken(UserError("not served"))})])
    in_turn([refused], batch, 1, lambda: None)
    assert refused.row(batch)["reason"] == "not served"
    (bug,) = entrants([Candidate(OURS, "fp32", True, {"": broken(ValueError("bug"))})], 40)
    with pytest.raises(ValueError, match="bug"):
        in_turn([bug], batch, 1, lambda: None)


@pytest.mark.parametrize("ours", [True, False])
def test_wrong_labels_show(few_runs: None, ours: bool) -> None:
    """In every row; only ours make the command fail."""
    batch = small_batch()
    answer = batch.truth.copy()
    answer[3] = (answer[3] + 1) % 10
    (entrant,) = entrants([fake("x", answer, [], OurFake if ours else FakeEngine, ours=ours)])
    in_turn([entrant], batch, 1, lambda: None)
    row = entrant.row(batch)
    assert (row["correct"], row["changed"], row["wrong"]) == (39, 1, ours)
    assert row["largest_margin"] == pytest.approx(batch.reference.margins[3])


def test_labels_that_change_show(few_runs: None) -> None:
    batch = small_batch()

    class Flickers(OurFake):
        def enqueue(self) -> None:
            self.card[:] = UNWRITTEN  # as if no kernel had run

    (entrant,) = entrants([fake("x", batch.truth, [], Flickers, ours=True)])
    in_turn([entrant], batch, 1, lambda: None)
    row = entrant.row(batch)
    assert row["unsteady"] == row["on_card_ms"]["runs"] and row["wrong"]


class Paced(FakeEngine):
    """Takes its time: ms end to end, and on the card."""

    run_ms = enqueue_ms = 0.0

    def run(self) -> None:
        sleep(self.run_ms / 1e3)
        super().run()

    def enqueue(self) -> None:
        sleep(self.enqueue_ms / 1e3)
        super().enqueue()


def test_the_fastest_setting_enters_for_each_measurement(few_runs: None) -> None:
    batch = small_batch()
    diary: list[str] = []

    def paced(name: str, run_ms: float, enqueue_ms: float) -> Callable[..., Engine]:
        def make(_: Any, __: Any, labels: np.ndarray) -> Engine:
            engine = Paced(batch.truth, labels, diary, name)
            engine.run_ms, engine.enqueue_ms = run_ms, enqueue_ms
            engine.note = name
            return engine

        return make

    def fails(*_: Any) -> Engine:
        raise RuntimeError("no such layout")

    makes = {
        "slow": paced("slow", 20, 20),
        "broken": fails,
        "on card": paced("on card", 15, 0),
        "end to end": paced("end to end", 0, 10),
        "slower": paced("slower", 25, 25),
    }
    (entrant,) = entrants([Candidate("x", "fp32", False, makes)])
    in_turn([entrant], batch, 2, lambda: None)
    row = entrant.row(batch)
    assert row["settings"] == {"on_card_ms": "on card", "end_to_end_ms": "end to end"} and not row["reason"]
    assert row["on_card_ms"]["p50"] < 5 and row["end_to_end_ms"]["p50"] < 10 and row["note"] == "end to end"
    assert [tried["setting"] for tried in row["tried"]] == list(makes)
    assert [tried["reason"] for tried in row["tried"]] == ["", "no such layout", "", "", ""]
    closed = [entry for entry in diary if entry.endswith("closed")]
    assert closed[:2] == ["slow closed", "slower closed"] and len(closed) == 4, "only two engines are kept"


def test_settings_are_all_there_are_ways() -> None:
    """Both layouts, in pieces and whole, as a plain CUDA graph and without; compiled modes their own way, too."""
    eager, compiled = settings(None), settings("max-autotune")
    for tried in (eager, compiled):
        assert {setting.channels_last for setting in tried} == {True, False}
        assert {setting.graph for setting in tried} == {True, False} == {setting.pieces for setting in tried}
        assert len({str(setting) for setting in tried}) == len(tried)
    assert (
        Setting(False, False, True) in eager and str(Setting(True, True, True)) == "channels last, pieces, CUDA graph"
    )


def test_pieces_fit_the_cache_and_divide_the_batch() -> None:
    graph = small_batch(count=1).graph  # conv1: 784 numbers in, 18,432 out and again in and out of its ReLU
    image = 2 * 18_432 * 4
    assert piece_size(graph, 10_000, 4, 100 * image) == 100
    assert piece_size(graph, 10_000, 4, 130 * image) == 125
    assert piece_size(graph, 10_000, 2, 130 * image) == 250
    assert piece_size(graph, 64, 4, 100 * image) == 64, "all of it fits"
    assert piece_size(graph, 9973, 4, 100 * image) == 9973, "a prime number of images"
    assert piece_size(graph, 1, 4, 1) == 1


def test_one_line() -> None:
    assert one_line(RuntimeError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(RuntimeError("x" * 500))) == 160


def test_functions_with_code_of_their_own() -> None:
    def plus(x: int) -> int:
        return x + offset

    offset = 2
    other = own_code(plus)
    assert other(1) == 3 and other.__code__ is not plus.__code__


TORCH, JAX = partial(TorchEngine, mode=None, device="cpu"), partial(JaxEngine, platform="cpu")


@pytest.mark.parametrize(
    ("network", "precision"),
    [("lenet5", "tf32"), *((network, precision) for network in NETWORKS for precision in ("fp32", "fp16"))],
)
@pytest.mark.parametrize(("framework", "make"), [("torch", TORCH), ("jax", JAX)])
def test_frameworks_on_the_cpu_agree_with_the_reference(
    framework: str, make: Callable[..., Engine], precision: str, network: str, few_runs: None
) -> None:
    """The frameworks enlarge in float32, so that now and then a byte is another: no more than near-ties may flip."""
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    batch = small_batch(network, 8)
    makes: dict[str, Callable[..., Engine]] = {"": partial(make, precision=precision)}
    if framework == "torch":
        layouts = (Setting(), Setting(channels_last=True))
        makes = {str(setting): partial(make, precision=precision, setting=setting) for setting in layouts}
    (entrant,) = entrants([Candidate(framework, precision, False, makes)], 8)
    in_turn([entrant], batch, 1, lambda: None)
    row = entrant.row(batch)
    assert not row["reason"] and not row["unsteady"] and all(not tried["reason"] for tried in row["tried"])
    most = 0.05 if precision == "fp16" else 1e-3 if isinstance(batch.graph.network.layers[0], Resize) else 0
    assert row["changed"] == 0 or row["largest_margin"] < most


@pytest.mark.parametrize(
    ("framework", "module", "make"),
    [
        ("torch", torch, partial(TORCH, setting=Setting(pieces=True))),
        ("torch", torch, partial(TORCH, setting=Setting(channels_last=True, pieces=True))),
        ("jax", jax, partial(JAX, in_pieces=True)),
    ],
)
def test_pieces_give_the_labels_of_the_whole(
    framework: str, module: Any, make: Callable[..., Engine], few_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    monkeypatch.setattr(module, "L2_BYTES", 2 * 2 * 18_432 * 4)
    batch = small_batch("lenet5", 8)
    (entrant,) = entrants([Candidate(framework, "fp32", False, {"": partial(make, precision="fp32")})], 8)
    in_turn([entrant], batch, 1, lambda: None)
    row = entrant.row(batch)
    assert row["note"] == "pieces of 2" and not row["reason"]
    assert row["changed"] == 0 and not row["unsteady"]
