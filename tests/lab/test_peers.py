"""Test ``bench --peers``: options, ratios, text, JSON and exit codes, with fake engines and on a card."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.files import shipped
from app.lab import batch as batch_module
from app.lab.batch import Batch
from app.lab.peers import peers, torch
from app.lab.peers.jax import SETTINGS as JAX_SETTINGS
from app.lab.peers.peers import EAGER, EngineFactories, redirect_output_to_stderr
from app.lab.peers.rounds import OURS, Engine
from app.lab.peers.text import as_text, speedups_over_peers
from app.main_job.statistics import summarise_samples
from app.network.definitions import NETWORKS
from app.network.toml import network_toml
from tests.lab.conftest import RunBench
from tests.support.networks_for_tests import BARE, random_graph
from tests.support.peers_for_tests import CARD, OurFake, small_batch
from tests.support.schemas import check_described, check_widths


def row_of(engine: str, setting: str, precision: str, on_card: float | None, whole: float = 0, **more: Any) -> Any:
    times = {
        "on_card_ms": on_card and summarise_samples([on_card]),
        "end_to_end_ms": on_card and summarise_samples([whole]),
    }
    known = {"engine": engine, "setting": setting, "precision": precision, "note": "", "reason": ""}
    counts = {"correct": 9280, "changed": 0, "largest_margin": None, "unsteady": 0, "wrong": False}
    return {**known, **times, **counts, **more}


ROWS = [
    row_of(OURS, "", "fp32x", 0.5, 1.0, note="fused"),
    row_of("torch", "eager, contiguous", "fp32", 3.0, 3.5),
    row_of("jax", "jit", "fp32", 2.0, 5.0, unsteady=2),
    row_of(OURS, "", "fp16", 0.1, 0.2, changed=7, largest_margin=0.015625),
    row_of("torch", "max-autotune, channels last", "fp16", 0.09, 2.4),
    row_of(OURS, "", "tf32", 1.0, 1.0),
    row_of("torch", "eager, contiguous", "tf32", 2.0, 2.0),
    row_of(OURS, "", "int8", None, reason="not served"),
]
KNOWN = {"fp32": "", "fp16": "", "tf32": "3 of the peers' 24 settings were tried"}


def comparison(rows: list[Any], network: str = "mlp", images: int = 10_000) -> Any:
    """Return the comparison of these rows in a document; in tf32 not all settings were tried."""
    ratios = speedups_over_peers(rows, KNOWN)
    return {"network": network, "digest": "0" * 64, "images": images, "rows": rows, "ratios": ratios}


DOCUMENT: Any = {
    "schema": "lenet5-inference/peers/2",
    "date": "2026-01-01 00:00 UTC",
    "command": "",
    "device": CARD,
    "software": {"torch": "2.99", "jax": "0.9"},
    "rounds": 7,
    "comparisons": [comparison(ROWS)],
    "notes": ["a note"],
}


def test_ratios_to_the_fastest_peers() -> None:
    accurate, half, unknown = speedups_over_peers(ROWS, KNOWN)
    assert (accurate["precision"], accurate["against"], accurate["reason"]) == ("fp32x", "fp32", "")
    assert accurate["on_card_ms"] == {"setting": "jit", "ratio": 4.0}
    assert accurate["end_to_end_ms"] == {"setting": "eager, contiguous", "ratio": 3.5}
    assert half["on_card_ms"] == {"setting": "max-autotune, channels last", "ratio": pytest.approx(0.9)}
    assert (unknown["on_card_ms"], unknown["end_to_end_ms"], unknown["reason"]) == (None, None, KNOWN["tf32"])


def test_without_the_fastest_setting_there_is_no_ratio() -> None:
    """A ratio to a slower setting would be too large."""
    broken = row_of("torch", "max-autotune, contiguous", "fp32", None, reason="out of memory")
    (found,) = speedups_over_peers([*ROWS[:3], broken], KNOWN)
    assert found["on_card_ms"] is None and found["reason"] == "max-autotune, contiguous: out of memory"


def test_peers_text() -> None:
    text = check_widths(as_text, DOCUMENT)
    assert "mlp, 10,000 images" in text and "jax 0.9" in text and "7 rounds" in text and text.endswith("a note")
    assert "ours int8 – not served" in " ".join(text.split())
    assert "jax fp32: 2 timed runs gave other labels" in text and "ours fp32x: fused" in text
    assert "torch fp16: max-autotune, channels last" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["fp32x", "4.00", "3.50"] in lines and ["fp16", "0.90", "12.0", "SLOWER"] in lines
    assert ["tf32", "–", "–", *KNOWN["tf32"].split()] in lines
    assert any(line[-3:] == ["9,280", "7", "0.016"] for line in lines)


def test_output_of_libraries_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with redirect_output_to_stderr():
        print("from Python")
        os.system("echo from a child")
    print("a result")
    captured = capfd.readouterr()
    assert captured.out == "a result\n"
    assert "from a child" in captured.err and "from Python" in captured.err


@pytest.fixture
def no_card(some_card: None, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Let the command run without a card, on a small batch; return the batch."""
    pytest.importorskip("app.lab.peers.ours", reason="CuPy is not installed")  # its modules keep the real pinned_array
    batch = small_batch()
    monkeypatch.setattr(peers, "load_batch", lambda network, count, checked: batch)
    monkeypatch.setattr("app.cuda.memory.pinned_array", np.empty)
    return batch


@pytest.mark.parametrize("wrong", [False, True])
def test_command_without_peers(
    wrong: bool, no_card: Batch, few_runs: None, run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    answer = (no_card.truth + wrong) % 10

    def ours(_: Any, __: Any, labels: np.ndarray, precision: str) -> Engine:
        return OurFake(answer[: len(labels)], labels, [], precision)

    monkeypatch.setattr(
        peers,
        "find_engine_factories",
        lambda *_: EngineFactories(ours, {}, ["torch is left out: broken"], lambda: None),
    )
    options = "--peers --network lenet5,lenet5 --batches 40,20 --rounds 2 --precision fp16,fp32x,fp16"  # each once
    code, text, document = run_bench(options)
    assert code == wrong and document["schema"] == "lenet5-inference/peers/2"
    assert document["command"] == f"python main.py bench {options}"
    assert [one["images"] for one in document["comparisons"]] == [20, 40]
    for one in document["comparisons"]:
        assert [(row["precision"], row["wrong"]) for row in one["rows"]] == [("fp16", wrong), ("fp32x", wrong)]
        assert [ratio["reason"] for ratio in one["ratios"]] == ["no peer was timed"] * 2
    assert as_text(document) + "\n" == text and ("WRONG" in text) == wrong and "torch is left out: broken" in text
    assert main(["bench", "--peers", "--rounds", "1", "--json", "-"]) == int(wrong)
    assert json.loads(capsys.readouterr().out)["rounds"] == 1
    assert main(["bench", "--peers", "--only", "torch"]) == 2 and "torch is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("network", "wrong"),
    [
        ("k7", "--batch 4 is more than the 3 images of somewhere"),
        ("resnet", "unknown network 'resnet'"),
        ("lenet5", "--batch 4 is more than the 3 images of somewhere"),
    ],
)
def test_refused_batches(network: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    few = SimpleNamespace(images=np.zeros(3, np.uint8), labels=np.zeros(3, np.uint8), source="somewhere")
    monkeypatch.setattr(batch_module, "load_fashion_mnist", lambda *_: few)
    if network == "k7":
        monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=wrong):
        batch_module.load_batch(network, 4)


def test_a_batch_of_a_network_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test images do not fit, so images and weights are random; the reference is computed."""
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
def test_peers_on_the_card(network: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command times this program in every precision, eager PyTorch, and the fastest known settings of peers."""
    path = tmp_path / "peers.json"
    options = f"--network {network} --batch {count} --rounds 1 --json {path}"
    assert main(["bench", "--peers", *options.split()]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    check_described(document)
    (found,) = document["comparisons"]
    for row in found["rows"]:
        assert row["on_card_ms"] or row["reason"], row
        assert row["on_card_ms"] is None or row["unsteady"] == 0, row
    assert any(row["engine"] == OURS and row["on_card_ms"] for row in found["rows"])


@pytest.mark.gpu
def test_a_search_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the settings of JAX, where it is installed; then a comparison has a ratio."""
    monkeypatch.setattr("app.lab.peers.search.cache_dir", lambda: tmp_path)
    monkeypatch.setattr("app.lab.peers.search.FIGURES", tmp_path)
    found = []
    for number, options in enumerate(("--search --only jax", "--only ours,jax")):
        path = tmp_path / f"{number}.json"
        command = f"bench --peers --batch 1 --precision fp16 {options} --json {path}"
        assert main(command.split()) == 0
        found.append(json.loads(path.read_text(encoding="utf-8")))
        check_described(found[-1])
    searched, compared = found
    ratio = compared["comparisons"][0]["ratios"][0]  # on Hopper dense kernels have one, too
    assert ratio["reason"] == ("" if searched["searches"] else "no peer was timed")


def test_peers_that_cannot_run_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.lab.bench.cudnn.why_no_cudnn", lambda: None)
    monkeypatch.setattr("app.lab.peers.jax.why_no_jax", lambda: "JAX sees no GPU")
    found = peers.find_engine_factories(["ours", "torch", "jax"], OurFake, lambda: None)
    assert found.missing == ["jax is left out: JAX sees no GPU"]
    assert {name: [*settings] for name, settings in found.peers.items()} == {"torch": [*map(str, torch.SETTINGS)]}
    monkeypatch.setattr("app.lab.peers.jax.why_no_jax", lambda: None)
    found = peers.find_engine_factories(["jax"], OurFake, lambda: None)
    assert not found.missing and {name: [*each] for name, each in found.peers.items()} == {"jax": [*JAX_SETTINGS]}


WHOLE, PIECES = "eager, contiguous, CUDA graph", "eager, contiguous, pieces, CUDA graph"


@pytest.mark.parametrize(
    ("network", "ms", "needless"),
    [
        ("lenet5", {}, 0),
        ("mlp", {}, 11),  # every second one has the other layout
        ("lenet5", {WHOLE: [1.0, 2.0], PIECES: [1.1, 2.1]}, 2),  # compiled in two modes
        ("lenet5", {WHOLE: [1.0, 2.0], PIECES: [1.1, 1.9]}, 0),
        ("lenet5", {PIECES: [1.1, 2.1]}, 0),
    ],
)
def test_settings_that_cannot_be_the_fastest(network: str, ms: dict[str, list[float]], needless: int) -> None:
    graph = random_graph(NETWORKS[network])
    found = {name: why for name in map(str, torch.SETTINGS) if (why := torch.reason_to_skip_setting(name, ms, graph))}
    assert len(found) == needless and set(found.values()) <= {*torch.NEEDLESS}
    assert all(("pieces" if ms else "channels last") in name for name in found)
    assert not {WHOLE, PIECES, EAGER} & found.keys()
    assert not torch.reason_to_skip_setting("jit", ms, graph)
