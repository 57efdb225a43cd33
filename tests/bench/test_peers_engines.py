"""The further peers: ONNX Runtime on the CPU, and PyTorch with cuDNN's graphs, which a fake library computes."""

import sys
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.bench.batch import UNWRITTEN
from app.bench.peers.cudnn_graph import CudnnEngine
from app.bench.peers.onnx_runtime import BYTES, OnnxEngine, model_of
from app.bench.peers.rounds import Candidate, in_turn
from app.bench.peers.torch import Setting, TorchEngine
from app.errors import UserError
from app.layers import Conv2d, Resize
from app.network.definitions import LENET5, NETWORKS, Network
from tests.support.networks_for_tests import OVERHANG
from tests.support.peers_for_tests import entrants, small_batch

FA19 = NETWORKS["fa19"]
pytestmark = pytest.mark.usefixtures("few_runs")
ON_CPU = partial(OnnxEngine, provider="CPUExecutionProvider", setting=Setting())


def row_of(network: Network, make: Any, precision: str) -> dict[str, Any]:
    batch = small_batch(network, 8)
    (entrant,) = entrants([Candidate("x", precision, False, {"": partial(make, precision=precision)})], 8)
    in_turn([entrant], batch, 1, lambda _: None)
    row = entrant.row(batch)
    resized = isinstance(network.layers[0], Resize)
    assert row["changed"] in (0, None) or row["largest_margin"] < (0.05 if precision == "fp16" else 1e-3 * resized)
    return row


@pytest.mark.parametrize(
    ("network", "precision"),
    [*((network, "fp32") for network in (*NETWORKS.values(), OVERHANG)), (LENET5, "fp16"), (FA19, "fp16")],
    ids=lambda value: getattr(value, "name", value),
)
def test_onnx_runtime_agrees_with_the_reference(network: Network, precision: str) -> None:
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    row = row_of(network, ON_CPU, precision)
    assert not row["reason"] and not row["unsteady"] and row["correct"] is not None


def test_onnx_runtime_in_pieces_and_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("app.bench.batch.L2_BYTES", 2 * 2 * 18_432 * 4)
    row = row_of(LENET5, partial(ON_CPU, setting=Setting(pieces=True)), "fp32")
    assert row["note"] == "pieces of 2" and not row["reason"] and not row["unsteady"]
    graph = model_of(small_batch(FA19, 1).graph, half=True).graph
    assert [output.name for output in graph.output] == [BYTES]
    types = {array.data_type for array in graph.initializer}
    assert types == {onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32}


@pytest.mark.parametrize("framework", ["onnxruntime", "torch"])
def test_labels_are_overwritten_before_a_run(framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    batch, labels = small_batch(count=2), np.empty(2, np.uint8)
    make = ON_CPU if framework == "onnxruntime" else partial(TorchEngine, mode=None, device="cpu")
    engine = make(batch.graph, batch.images.copy(), labels, "fp32")
    with engine.active():
        engine.load()
        engine.enqueue()
        for clear in (engine.wipe, engine.load):
            engine.run()
            assert np.array_equal(labels, batch.truth) and np.array_equal(engine.card_labels(), batch.truth)
            clear()
            assert (engine.card_labels() == UNWRITTEN).all()


def test_engines_that_are_not_installed_say_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = small_batch(count=2)
    given = batch.graph, batch.images, np.empty(2, np.uint8), "fp32", Setting()
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install nvidia-cudnn-frontend"):
        CudnnEngine(*given)
    with pytest.raises(UserError, match="onnxruntime is not installed"):
        OnnxEngine(*given)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    library = SimpleNamespace(get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    with pytest.raises(UserError, match="pip install onnxruntime-gpu"):
        OnnxEngine(*given)


class FakeTensor:
    """cuDNN's description of a tensor."""

    def __init__(self, dim: list[int]) -> None:
        self._dim = dim

    def get_dim(self) -> list[int]:
        return self._dim

    def set_output(self, _: bool) -> "FakeTensor":
        return self

    def set_data_type(self, _: object) -> None: ...


class FakeGraph:
    """cuDNN's graph, as far as the engine uses it; PyTorch computes it. serves: whether any convolution."""

    serves = True
    made = 0

    def __init__(self, **types: object) -> None:
        assert types["io_data_type"] == types["compute_data_type"] == "float"
        self.steps: list[Any] = []
        FakeGraph.made += 1

    def tensor(self, dim: list[int], stride: list[int]) -> FakeTensor:
        assert stride == [dim[1] * dim[2] * dim[3], 1, dim[3] * dim[1], dim[1]], "channels last"
        return FakeTensor(dim)

    def conv_fprop(self, *, image: FakeTensor, weight: FakeTensor, padding: Any, stride: Any, dilation: Any) -> Any:
        if not self.serves:
            raise RuntimeError("no engine")
        (n, _, *sizes), (maps, _, *kernel) = image.get_dim(), weight.get_dim()
        self.steps.append((image, weight, padding, stride, dilation))
        places = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(sizes, padding, kernel, stride, strict=True)]
        return FakeTensor([n, maps, *places])

    def bias(self, *, input: FakeTensor, bias: FakeTensor) -> FakeTensor:
        self.steps.append(bias)
        return input

    def _activation(self, name: str, *, input: FakeTensor) -> FakeTensor:
        self.steps.append(name)
        return input

    relu, tanh, sigmoid = partialmethod(_activation, "relu"), partialmethod(_activation, "tanh"), None

    def _ready(self, *_: object) -> None: ...

    validate = build_operation_graph = create_execution_plans = check_support = deselect_numeric_notes = _ready

    def get_execution_plan_count(self) -> int:
        return 2

    def build_plan_at_index(self, index: int) -> None:
        if index == 1:
            raise NotImplementedError("declined")

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, given: Any, workspace: Any, handle: object) -> None:
        import torch

        assert workspace.numel() == 1 and handle is None
        (image, weight, *sizes), *others = self.steps
        *_, y = given.values()
        found = torch.nn.functional.conv2d(given[image], given[weight], None, sizes[1], sizes[0], sizes[2])
        for other in others:
            found = getattr(torch, other)(found) if isinstance(other, str) else found + given[other]
        y.copy_(found)


@pytest.mark.parametrize("network", [LENET5, FA19, OVERHANG], ids=lambda network: network.name)
@pytest.mark.parametrize("serves", [True, False])
def test_cudnn_graphs_serve_convolutions_with_what_follows(
    network: Network, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    library = Mock(pygraph=FakeGraph, data_type=Mock(HALF="half", FLOAT="float"))
    monkeypatch.setitem(sys.modules, "cudnn", library)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(FakeGraph, "made", 0)
    monkeypatch.setattr(FakeGraph, "serves", serves)
    row = row_of(network, partial(CudnnEngine, setting=Setting(channels_last=True), device="cpu"), "fp32")
    assert FakeGraph.made == sum(isinstance(layer, Conv2d) for layer in network.layers)
    assert row["reason"] == ("" if serves else "cuDNN's graphs serve no convolution here: no engine")


def test_labels_of_an_earlier_turn_are_not_touched() -> None:
    """They lie where graphs of torch.compile put theirs: another engine's may have taken that memory."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    batch = small_batch(LENET5, 2)
    engine = TorchEngine(batch.graph, batch.images, np.empty(2, np.uint8), "fp32", None, device="cpu")
    with engine.active():
        engine.run()
    engine._labels = Mock(fill_=Mock(side_effect=RuntimeError("overwritten")))
    with engine.active():
        engine.wipe()
        engine.run()
