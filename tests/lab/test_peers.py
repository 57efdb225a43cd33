"""``bench --peers``: options, ratios, text, JSON and exit codes; with fakes, and tiny on a card."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import PRECISIONS
from app.cli import main
from app.files import shipped
from app.lab import batch as batch_module
from app.lab.batch import Batch
from app.lab.peers import peers
from app.lab.peers.peers import ENGINES, OURS, candidates, output_to_stderr, parse_engine_names
from app.lab.peers.text import as_text, speedups_over_peers
from app.main_job.statistics import summarise_samples
from app.network.definitions import NETWORKS
from app.network.toml import network_toml
from tests.lab.conftest import Benched
from tests.support.networks_for_tests import BARE
from tests.support.peers_for_tests import CARD, OurFake, fake, small_batch
from tests.support.schemas import check_described
from tests.support.widths import check_widths


def row_of(engine: str, precision: str, on_card: float | None, whole: float = 0, **more: Any) -> Any:
    times = {
        "on_card_ms": on_card and summarise_samples([on_card]),
        "end_to_end_ms": on_card and summarise_samples([whole]),
    }
    known: dict[str, Any] = {"engine": engine, "precision": precision, "ours": engine == OURS, "note": "", "reason": ""}
    counts = {"correct": 9280, "changed": 0, "largest_margin": None, "unsteady": 0, "wrong": False}
    return {**known, **times, **counts, "settings": {}, "tried": [], **more}


ROWS = [
    row_of(OURS, "fp32x", 0.5, 1.0, note="fused"),
    row_of(OURS, "fp16", 0.1, 0.2, changed=7, largest_margin=0.015625),
    row_of("torch-eager", "fp32", 3.0, 3.5),
    row_of("torch-eager", "fp16", None, reason="PyTorch is not installed"),
    row_of("jax-jit", "fp32", 2.0, 5.0, unsteady=2),
    row_of("jax-jit", "fp16", 0.8, 2.4),
]
DOCUMENT: Any = {
    "schema": "lenet5-inference/peers/1",
    "date": "2026-01-01 00:00 UTC",
    "command": "",
    "network": "mlp",
    "device": CARD,
    "software": {"torch": "2.99", "jax": "0.9"},
    "images": 10_000,
    "rounds": 7,
    "rows": ROWS,
    "ratios": speedups_over_peers(ROWS),
}


def test_ratios() -> None:
    accurate, half = speedups_over_peers(ROWS)
    assert (accurate["precision"], accurate["against"]) == ("fp32x", "fp32")
    assert accurate["on_card_ms"] == {"best": "jax-jit", "ratio": 4.0, "each": {"torch-eager": 6.0, "jax-jit": 4.0}}
    assert accurate["end_to_end_ms"]["best"] == "torch-eager" and accurate["end_to_end_ms"]["ratio"] == 3.5
    assert half["end_to_end_ms"]["each"] == {"jax-jit": pytest.approx(12.0)}
    (alone,) = speedups_over_peers([row_of(OURS, "tf32", 1.0, 1.0)])
    assert alone["on_card_ms"] == {"best": None, "ratio": None, "each": {}}


def test_text() -> None:
    text = check_widths(as_text, DOCUMENT)
    assert "10,000 images" in text and "jax 0.9" in text and "7 rounds" in text
    assert "torch-eager fp16 – PyTorch is not installed" in " ".join(text.split())
    assert "jax-jit fp32: 2 timed runs gave other labels" in text and "ours fp32x: fused" in text
    lines = text.splitlines()
    ours = [["fp32x", "the", "fastest", "fp32", "4.00", "3.50"], ["fp32x", "torch-eager", "fp32", "6.00", "3.50"]]
    assert all(own in [line.split() for line in lines] for own in ours)
    assert any(line.split()[-3:] == ["9,280", "7", "0.016"] for line in lines)


def test_candidates() -> None:
    def no_engine(*_: Any, **__: Any) -> None: ...

    every = candidates(ENGINES, None, no_engine)
    assert {row.precision for row in every if row.ours} == set(PRECISIONS)
    assert len([row for row in every if not row.ours]) == 3 * (len(ENGINES) - 1)
    few = candidates(parse_engine_names("ours,jax-jit"), "fp16", no_engine)
    names = [("ours", "fp16"), ("ours", "int8"), ("jax-jit", "fp16")]
    assert [(row.engine, row.precision) for row in few] == names, "all of ours that are compared with fp16"
    accurate = candidates(["ours", "torch-eager"], "fp32x", no_engine)
    names = [("ours", "fp32"), ("ours", "fp32x"), ("torch-eager", "fp32")]
    assert [(row.engine, row.precision) for row in accurate] == names


def test_noise_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with output_to_stderr():
        print("from Python")
        os.system("echo from a child")
    print("a result")
    captured = capfd.readouterr()
    assert captured.out == "a result\n"
    assert "from a child" in captured.err and "from Python" in captured.err


@pytest.fixture
def no_card(some_card: None, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """The command without a card: its engines are fakes."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    batch = small_batch()
    monkeypatch.setattr(peers, "load_batch", lambda network, count: batch)
    monkeypatch.setattr("app.cuda.memory.pinned_array", np.empty)
    return batch


@pytest.mark.parametrize("wrong", [False, True])
def test_command(
    wrong: bool, no_card: Batch, few_runs: None, benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    answer = (no_card.truth + wrong) % 10
    engines = [fake(OURS, answer, [], OurFake, ours=True), fake("torch-eager", no_card.truth, [])]
    monkeypatch.setattr(peers, "candidates", lambda *_: engines)
    code, text, document = benched("--peers --batch 40 --rounds 2")
    assert code == wrong and document["schema"] == "lenet5-inference/peers/1"
    assert document["command"] == "python main.py bench --peers --network lenet5 --batch 40 --rounds 2"
    assert [row["wrong"] for row in document["rows"]] == [wrong, False]
    assert document["ratios"][0]["on_card_ms"]["best"] == "torch-eager"
    assert as_text(document) + "\n" == text and ("WRONG" in text) == wrong
    assert main(["bench", "--peers", "--rounds", "1", "--json", "-"]) == int(wrong)
    assert json.loads(capsys.readouterr().out)["rounds"] == 1


@pytest.mark.parametrize(
    ("network", "wrong"),
    [
        ("k7", "--batch 4 is more than the 3 images of somewhere"),
        ("resnet", "unknown network 'resnet'"),
        ("lenet5", "--batch 4 is more than the 3 images of somewhere"),
    ],
)
def test_no_batch(network: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    few = SimpleNamespace(images=np.zeros(3, np.uint8), labels=np.zeros(3, np.uint8), source="somewhere")
    monkeypatch.setattr(batch_module, "load_fashion_mnist", lambda *_: few)
    if network == "k7":
        monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=wrong):
        batch_module.load_batch(network, 4)


def test_a_batch_of_a_network_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Random weights, and random images that are judged by their own reference: the test images do not fit."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    import app.cuda.memory

    monkeypatch.setattr(app.cuda.memory, "pinned_array", np.empty)
    path, bare = tmp_path / "bare.toml", replace(BARE, input_shape=(3, 4, 5), summary="")
    path.write_text(network_toml(bare))
    batch = batch_module.load_batch(str(path), 4)
    assert (batch.graph.network, batch.images.shape) == (bare, (4, 3, 4, 5))
    score = batch.score(batch.graph.forward(batch.images, np.float32)[1], "float32")
    assert (score["correct"], score["wrong"]) == (4, False)


@pytest.mark.gpu
@pytest.mark.parametrize("network", [name for name in NETWORKS if shipped.weights_path(name).exists()])
@pytest.mark.parametrize("count", [1, 100])
def test_on_the_card(network: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eager PyTorch and JAX, where installed, and ours in every precision."""
    path = tmp_path / "peers.json"
    options = f"--network {network} --batch {count} --rounds 1 --only ours,torch-eager,jax-jit --json {path}"
    assert main(["bench", "--peers", *options.split()]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    check_described(document)
    for row in document["rows"]:
        assert row["on_card_ms"] or row["reason"], row
        assert row["on_card_ms"] is None or row["unsteady"] == 0, row
    assert any(row["ours"] and row["on_card_ms"] for row in document["rows"])
