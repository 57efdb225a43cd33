"""The engine by ONNX Runtime: NumPy's labels, up to near-ties, and the engine that is chosen."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.engine import onnx_runtime
from app.engine.cpu import CpuEngine
from app.engine.interface import CPU_ENGINE, Outputs
from app.engine.onnx_runtime import OnnxEngine
from app.engine.opening import cpu_engine
from app.network.accuracy import agree
from app.network.definitions import LENET5, Network
from app.network.reference import compute_reference
from app.terminal.text import WIDTH
from tests.support.networks_for_tests import TEST_NETWORKS, random_graph, random_images
from tests.support.schemas import mistakes


def classify(engine: CpuEngine, images: np.ndarray, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores, from arrays poisoned before."""
    engine.threads = threads
    labels = np.full(len(images), 255, np.uint8)
    scores = np.full((len(images), engine.graph.classes), np.nan, np.float32)
    engine.run(images, Outputs(labels, scores))
    return labels, scores


@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_labels_are_the_references(network: Network) -> None:
    """But for near-ties, by the rule of fp32."""
    graph, images = random_graph(network), random_images(network, 40)
    labels, scores = classify(OnnxEngine(graph), images)
    agreement = agree(labels, compute_reference(graph, images), "float64", "float32")
    assert agreement.holds, agreement.verdict
    wanted = classify(CpuEngine(graph), images)[1]
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-4 * float(np.abs(wanted).max()))
    assert len(np.unique(labels)) > 1


def test_scores_do_not_depend_on_threads_and_floats_are_taken() -> None:
    images = random_images(LENET5, 300)
    engine = OnnxEngine(random_graph(LENET5))
    labels, scores = classify(engine, images, 1)
    again, same = classify(engine, images, 3)
    np.testing.assert_array_equal(labels, again)
    np.testing.assert_array_equal(scores, same)
    as_floats = classify(engine, images / 255, 1)
    np.testing.assert_array_equal(as_floats[0], labels)
    np.testing.assert_allclose(as_floats[1], scores, rtol=1e-4, atol=1e-4)


def test_the_engine_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_ENGINE, "numpy")
    assert cpu_engine() is CpuEngine
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    assert cpu_engine() is OnnxEngine
    monkeypatch.delenv(CPU_ENGINE)
    assert cpu_engine() is OnnxEngine
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert cpu_engine() is CpuEngine
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    with pytest.raises(UserError, match=r"needs ONNX Runtime .*pip install .*'onnxruntime>="):
        cpu_engine()
    monkeypatch.setenv(CPU_ENGINE, "openvino")
    with pytest.raises(UserError, match="numpy or onnxruntime"):
        cpu_engine()


def test_what_it_cannot_run_is_a_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runtime, "onnx_model", lambda *_: SimpleNamespace(SerializeToString=lambda: b"no model"))
    with pytest.raises(
        UserError, match=r"does not run network lenet5 .*: compute by NumPy, with LENET_CPU_ENGINE=numpy"
    ):
        OnnxEngine(random_graph(LENET5))


def test_the_report_names_it(
    first_hundred: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    assert main(["--device", "cpu", "--json", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= WIDTH
    report = json.loads((tmp_path / "report.json").read_text())
    assert not mistakes(report)
    assert report["device"]["onnxruntime"] in out and report["one_off_ms"]["engine"] > 0
    (layer,) = report["layers"]
    assert (layer["name"], layer["kernel"]) == (onnx_runtime.WHOLE, "ONNX Runtime")
    assert report["passed"] and report["op_times"] == [] and layer["gflop"] > 0.7
