"""Test how ``bench --peers`` measures engines in turn, and the networks that PyTorch and JAX run."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.lab.batch import UNWRITTEN, Batch, l2_chunk_size
from app.lab.peers import rounds
from app.lab.peers.jax import JaxEngine
from app.lab.peers.jax import _apply_layer as jax_layer
from app.lab.peers.rounds import OURS, Candidate, Engine, describe_error, measure_in_turn
from app.lab.peers.torch import MODES, SETTINGS, Setting, TorchEngine
from app.lab.peers.torch_network import _resize_module as torch_module
from app.lab.peers.torch_network import clone_function
from app.layers import Resize, Shape
from app.network.definitions import LENET5, NETWORKS, Network
from app.network.network import LayerStep
from tests.support.networks_for_tests import OVERHANG
from tests.support.peers_for_tests import FakeEngine, OurFake, entrants, fake, small_batch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("few_runs")


@pytest.fixture
def batch() -> Batch:
    """Return forty images for lenet5, with weights and labels."""
    return small_batch()


def measured_rows(batch: Batch, *candidates: Candidate, rounds: int = 1) -> list[Any]:
    """Measure the candidates; return their rows of the document."""
    found = entrants([*candidates], len(batch.images))
    measure_in_turn(found, batch, rounds, lambda _: None)
    return [entrant.result_row(batch) for entrant in found]


def test_engines_run_in_turn_and_are_closed(batch: Batch) -> None:
    diary: list[str] = []
    steps: list[str] = []
    found = entrants([fake(name, batch.truth, diary) for name in "abc"])
    measure_in_turn(found, batch, 2, steps.append)
    order = [name for index, name in enumerate(diary) if index == 0 or diary[index - 1] != name]
    assert order == [*"abc", *"abc", *"bca", "a closed", "b closed", "c closed"]
    assert steps == [
        *(f"torch {name} fp32" for name in "abc"),
        *(f"torch {name} fp32, round {n}" for n in (1, 2) for name in [*"abc"][n - 1 :] + [*"abc"][: n - 1]),
    ]
    answered: list[Any] = [entrant.result_row(batch) for entrant in found]
    for row in answered:
        assert row["end_to_end_ms"]["runs"] >= 4 and row["on_card_ms"]["runs"] == 2
        assert (row["correct"], row["changed"], row["unsteady"], row["wrong"]) == (40, 0, 0, False)
        assert row["note"] == "a note"


class Breaks(FakeEngine):
    """Fails at its fourth run, and again when it is closed."""

    def run(self) -> None:
        if len(self.diary) > 2:
            raise RuntimeError("device\nlost")
        super().run()

    def close(self) -> None:
        super().close()
        raise RuntimeError("still lost")


def test_a_failed_engine_has_a_reason(batch: Batch) -> None:
    diary: list[str] = []
    absent = Candidate("jax", "n", "fp32", Mock(side_effect=ImportError("no such framework")))
    breaks, works = fake("b", batch.truth, diary, Breaks), fake("a", batch.truth, diary)
    *found, _ = measured_rows(batch, breaks, absent, works, rounds=3)
    assert [row["reason"] for row in found] == ["device lost", "no such framework"]
    assert all(row["on_card_ms"] is None and row["correct"] is None and not row["wrong"] for row in found)
    assert diary.count("b closed") == 1 and diary[-1] == "a closed"


def test_bugs_of_this_program_are_raised(batch: Batch) -> None:
    def broken(error: Exception) -> Candidate:
        return Candidate(OURS, "", "fp32", Mock(side_effect=error))

    (refused,) = measured_rows(batch, broken(UserError("not served")))
    assert refused["reason"] == "not served"
    with pytest.raises(ValueError, match="bug"):
        measured_rows(batch, broken(ValueError("bug")))


@pytest.mark.parametrize("ours", [True, False])
def test_wrong_labels_are_counted(batch: Batch, ours: bool) -> None:
    """Wrong labels make the command fail only in rows of this program."""
    answer = batch.truth.copy()
    answer[3] = (answer[3] + 1) % 10
    (row,) = measured_rows(batch, fake("x", answer, [], OurFake if ours else FakeEngine, ours=ours))
    assert (row["correct"], row["changed"], row["wrong"]) == (39, 1, ours)
    assert row["largest_margin"] == pytest.approx(batch.reference.margins[3])


def test_labels_that_change_between_runs_are_counted(batch: Batch) -> None:
    class Flickers(OurFake):
        def enqueue(self) -> None:
            self.card[:] = UNWRITTEN  # as if no kernel had run

    (row,) = measured_rows(batch, fake("x", batch.truth, [], Flickers, ours=True))
    assert row["unsteady"] == row["on_card_ms"]["runs"] and row["wrong"]


def test_a_setting_is_tried_briefly(batch: Batch) -> None:
    """The try returns medians on the card and end to end, or sets a reason, and closes the engine."""

    class Paced(FakeEngine):
        def run(self) -> None:
            sleep(0.02)
            super().run()

        def enqueue(self) -> None:
            sleep(0.005)
            super().enqueue()

    diary: list[str] = []
    paced, breaks = entrants([fake("x", batch.truth, diary, Paced), fake("y", batch.truth, [], Breaks)])
    on_card, end_to_end = paced.time_briefly(batch)
    assert 5 <= on_card < 20 <= end_to_end and diary[-1] == "x closed" and not paced.reason
    assert breaks.time_briefly(batch) == [] and breaks.reason == "device lost"


def test_settings_cover_every_mode_and_layout() -> None:
    """Modes that make CUDA graphs themselves are neither captured nor run in pieces."""
    assert len({str(setting) for setting in SETTINGS}) == len(SETTINGS) == 22
    ways = {(False, False), (False, True), (True, True)}
    for mode, layout in product(MODES, (False, True)):
        found = {(one.pieces, one.graph) for one in SETTINGS if (one.mode, one.channels_last) == (mode, layout)}
        assert found == ({(False, False)} if mode in ("reduce-overhead", "max-autotune") else ways)
    assert str(Setting("default", True, True, True)) == "default, channels last, pieces, CUDA graph"


def test_pieces_fit_the_cache_and_divide_the_batch() -> None:
    graph = small_batch(count=1).graph  # conv1: 784 numbers in, 18,432 out and again in and out of its ReLU
    image = 2 * 18_432 * 4
    assert [l2_chunk_size(graph, 10_000, 4, fitting * image) for fitting in (100, 130)] == [100, 125]
    assert l2_chunk_size(graph, 10_000, 2, 130 * image) == 250
    assert l2_chunk_size(graph, 64, 4, 100 * image) == 64, "all of it fits"
    assert l2_chunk_size(graph, 9973, 4, 100 * image) == 9973, "a prime number of images"
    assert l2_chunk_size(graph, 1, 4, 1) == 1


def test_errors_are_described_in_one_line() -> None:
    assert describe_error(RuntimeError("a\n  b")) == "a b"
    assert describe_error(KeyError()) == "KeyError"
    assert len(describe_error(RuntimeError("x" * 500))) == 160


def test_a_cloned_function_has_another_code_object() -> None:
    def plus(x: int) -> int:
        return x + offset

    offset = 2
    other = clone_function(plus)
    assert other(1) == 3 and other.__code__ is not plus.__code__


PEERS = (*NETWORKS.values(), OVERHANG)
TORCH, JAX = partial(TorchEngine, device="cpu"), partial(JaxEngine, platform="cpu")


@pytest.mark.parametrize(
    ("network", "precision"),
    [(LENET5, "tf32"), *((network, precision) for network in PEERS for precision in ("fp32", "fp16"))],
)
@pytest.mark.parametrize(("framework", "make"), [("torch", TORCH), ("jax", JAX)])
def test_frameworks_on_the_cpu_agree_with_the_reference(
    framework: str, make: Callable[..., Engine], precision: str, network: Network
) -> None:
    """The frameworks resize in float32, so some pixels differ by 1: only labels of near-ties may change."""
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    batch = small_batch(network, 8)
    makes: list[Callable[..., Engine]] = [partial(make, precision=precision)]
    if framework == "torch":
        makes.append(partial(make, precision=precision, setting=Setting(channels_last=True)))
    most = 0.05 if precision == "fp16" else 1e-3 if isinstance(batch.graph.network.layers[0], Resize) else 0
    for row in measured_rows(batch, *(Candidate(framework, "", precision, one) for one in makes)):
        assert not row["reason"] and not row["unsteady"]
        assert row["changed"] == 0 or row["largest_margin"] < most


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 9)], ids=str)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_resize_exactly_by_the_rule_course(framework: str, shape: Shape) -> None:
    library = pytest.importorskip(framework, reason=f"{framework} is not installed")
    layer = Resize("resize", 13, "course")
    images = np.random.default_rng(1).integers(0, 256, (5, *shape), np.uint8)
    if framework == "torch":
        enlarge = torch_module(LayerStep(layer, shape, layer.output_shape(shape)), library, "cpu")
        found = enlarge(library.from_numpy(images)).numpy()
    else:
        enlarge = library.jit(partial(jax_layer, library, layer, {}))
        found = np.asarray(enlarge(images.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found, layer.reference(images, {}))


@pytest.mark.parametrize(
    ("framework", "make"),
    [
        ("torch", partial(TORCH, setting=Setting(pieces=True))),
        ("torch", partial(TORCH, setting=Setting(channels_last=True, pieces=True))),
        ("jax", partial(JAX, in_pieces=True)),
    ],
)
def test_pieces_give_the_labels_of_the_whole_batch(
    framework: str, make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    monkeypatch.setattr("app.lab.batch.L2_BYTES", 2 * 2 * 18_432 * 4)
    batch = small_batch(LENET5, 8)
    (row,) = measured_rows(batch, Candidate(framework, "", "fp32", partial(make, precision="fp32")))
    assert row["note"] == "pieces of 2" and not row["reason"]
    assert row["changed"] == 0 and not row["unsteady"]


def test_series_of_passes_take_20_ms(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PASSES", 10)
    for ms, passes in ((5.0, 4), (7.0, 3), (0.1, 10), (90.0, 1)):
        monkeypatch.setattr(rounds.Entrant, "_time_measurement", lambda *_, ms=ms: ms)
        (entrant,) = entrants([fake("x", batch.truth, [])])
        entrant.prepare(batch)
        assert entrant.passes == passes


def test_labels_are_overwritten_before_a_run() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    batch, labels = small_batch(count=2), np.empty(2, np.uint8)
    engine = TORCH(batch.graph, batch.images.copy(), labels, "fp32")
    with engine.settings_context():
        engine.upload_images()
        engine.enqueue()
        for clear in (engine.poison_buffers, engine.upload_images):
            engine.run()
            assert np.array_equal(labels, batch.truth) and np.array_equal(engine.download_labels(), batch.truth)
            clear()
            assert (engine.download_labels() == UNWRITTEN).all()


GRAPHS_ONE_AFTER_THE_OTHER = """
import gc

import numpy as np
import torch

from app.cuda.memory import pinned_array
from app.lab.peers.torch import Setting, TorchEngine
from app.network.graph import network_graph

images, labels = pinned_array((10_000, 1, 28, 28), np.uint8), pinned_array((10_000,), np.uint8)
images[:] = np.random.default_rng(1).integers(0, 256, images.shape, np.uint8)
first, second = (TorchEngine(network_graph("lenet5"), images, labels, "fp32", Setting(graph=True)) for _ in range(2))
with second.settings_context():
    first.run()
    second.run()
    expected = labels.copy()
    first.close()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # so does torch.compile when it makes graphs
    torch.cuda.empty_cache()
    labels.fill(255)
    second.run()
assert np.array_equal(labels, expected) and max(labels) < 10
"""


@pytest.mark.gpu
def test_a_graph_outlives_an_earlier_one() -> None:
    """Whose workspace of cuBLAS it once used: its kernels then wrote to freed memory. A fault would end the process."""
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run([sys.executable, "-c", GRAPHS_ONE_AFTER_THE_OTHER], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_labels_of_an_earlier_round_are_not_written() -> None:
    """Another engine's CUDA graph may meanwhile use the memory of these labels."""
    pytest.importorskip("torch", reason="torch is not installed")
    batch = small_batch(LENET5, 2)
    engine = TORCH(batch.graph, batch.images, np.empty(2, np.uint8), "fp32")
    with engine.settings_context():
        engine.run()
    engine._labels = Mock(fill_=Mock(side_effect=RuntimeError("overwritten")))
    with engine.settings_context():
        engine.poison_buffers()
        engine.run()
