"""Test ``main.py accuracy``: counts beside those of earlier reports, missing weights, failed checks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.cuda.device import why_no_gpu
from app.engine.cpu import CpuEngine
from app.files.shipped import find_shipped_weights, record_checksum, reference_path
from app.images import accuracy
from app.network.definitions import NETWORKS
from app.network.graph import Graph
from app.network.reference import load_reference, save_reference
from app.network.verdicts import Reference
from app.network.weights import load_weights, save_weights
from data_tools.dataset import Dataset
from tests.support.bundle_for_tests import IMAGES, TRUTH
from tests.support.networks_for_tests import FLAT, random_graph
from tests.support.schemas import mistakes, printed_wide
from tests.support.shell import Refuses

CPU = ["accuracy", "--device", "cpu"]


@pytest.fixture
def random_release(release: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship only lenet5 and mlp, with random weights, and random test images; return the folder."""
    data = Dataset(IMAGES[:, None], TRUTH, None, "random", "test")
    monkeypatch.setattr(accuracy, "load_fashion_mnist", lambda *_: data)
    return release


def correct_count(network: str) -> int:
    reference = load_reference(load_weights(find_shipped_weights(network)), NETWORKS[network])
    assert reference is not None
    return int((reference.labels[:100] == TRUTH[:100]).sum())


def test_all_networks(random_release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_wide(f"{' '.join(CPU)} --json {tmp_path / 'found.json'}", capsys).splitlines()
    begins = {line.split()[0]: at for at, line in enumerate(lines)}
    for network in ("lenet5", "mlp"):
        assert lines[begins[network]].split()[1:3] == ["fp32", f"{correct_count(network) / 100:.2%}"]
        assert any("PASSED: all 130" in line for line in lines[begins[network] + 1 :][:2])
    assert "no weights are shipped yet" in lines[begins["fa19"]]
    assert lines[begins["fa19"] + 1].split() == ["report", "76.00%", "76.70%", "76.53%"]
    document = json.loads((tmp_path / "found.json").read_text())
    assert not mistakes(document)
    rows: dict[str, dict[str, Any]] = {row["network"]: row for row in document["networks"]}
    assert list(rows) == list(NETWORKS)
    assert rows["mlp"]["correct"] == {"100": correct_count("mlp")} and rows["mlp"]["passed"] is True
    assert rows["k7"]["correct"] == {} and rows["k7"]["passed"] is None
    assert rows["minidnn86"]["reported"] == {"100": 0.86, "1000": 0.886, "5000": 0.871, "10000": 0.8714}


def test_one_network_as_json(random_release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CPU, "--network", "mlp", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["networks"]
    assert row["network"] == "mlp"


def test_labels_that_are_not_the_reference_fail(random_release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_weights(find_shipped_weights("mlp"))
    path = reference_path(find_shipped_weights("mlp"))
    other = Reference(np.full(130, 11, np.uint8), np.ones(130), np.ones(130))
    save_reference(path, other, weights.sha256, NETWORKS["mlp"])
    record_checksum(path)
    assert main(CPU) == 1
    assert "FAILED: 130 of 130 labels differ" in capsys.readouterr().out


def test_a_network_that_cannot_run_leaves_the_others(
    random_release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    def open_all_but_lenet5(graph: Graph, *_: Any, **__: Any) -> Any:
        if graph.network.name == "lenet5":
            raise UserError("lenet5 is not served")
        return CpuEngine(graph)

    monkeypatch.setattr(accuracy.device, "choose_device", lambda _: ("cuda", None))
    monkeypatch.setattr(accuracy.device, "describe_gpu", lambda: {"name": "some card", "architecture": "sm_80"})
    monkeypatch.setattr(accuracy, "open_engine", open_all_but_lenet5)
    assert main(["accuracy"]) == 0
    out = capsys.readouterr().out
    assert "lenet5 is not served" in out and "PASSED: all 130" in out
    refuses("accuracy --network lenet5", "lenet5 is not served")


def test_another_error_is_not_a_row_of_the_table(
    random_release: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(CpuEngine, "run", Mock(side_effect=UserError("cannot write the kernel cache")))
    refuses(CPU, "cannot write the kernel cache")


def test_a_network_without_shipped_weights(random_release: Path, refuses: Refuses) -> None:
    wrong = "no weights of network k7 are shipped: .* and name them with --weights$"
    refuses([*CPU, "--network", "k7"], wrong)


def test_weights_file_with_its_network(
    random_release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file's network may have the name of a shipped one; the count that the file promises is then checked."""
    network = replace(FLAT, input_shape=(1, 28, 28), name="mlp")
    graph, path = random_graph(network), tmp_path / "own.h5"
    right = int((graph.forward(IMAGES[:, None], np.float64)[1] == TRUTH).sum())
    for promise, code in ((right, 0), (right + 20, 1)):
        save_weights(path, graph.parameters, network=network, expected_correct={130: promise})
        assert main([*CPU, "--weights", str(path), "--json", "-"]) == code
        (row,) = json.loads(capsys.readouterr().out)["networks"]
        assert (row["network"], row["reported"], row["passed"]) == ("mlp", {}, code == 0)
        assert "all 130 labels equal the computed float64 reference" in row["verdict"]


def test_weights_of_a_network_for_other_images(random_release: Path, tmp_path: Path, refuses: Refuses) -> None:
    save_weights(tmp_path / "own.h5", random_graph(FLAT).parameters, network=FLAT)
    wrong = r"network flat reads \(1, 5, 9\), the test images are \(1, 28, 28\): use main.py"
    refuses([*CPU, "--weights", str(tmp_path / "own.h5")], wrong)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_says_why_it_runs_on_the_cpu(random_release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--network", "mlp"]) == 0
    assert capsys.readouterr().err.startswith("note: running on the CPU: ")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_shipped_networks_on_the_gpu(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every shipped network must pass its check on all test images."""
    assert main(["accuracy", "--device", "cuda", "--precision", precision, "--json", "-"]) == 0
    for row in json.loads(capsys.readouterr().out)["networks"]:
        assert row["passed"] in (True, None), row
