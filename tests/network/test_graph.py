"""Test graphs: inferred shapes, checks of weights, and the reference against ONNX Runtime."""

import re
from math import prod
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.layers import Argmax, Conv2d, Flatten, Layer, Linear, Shape
from app.network import graph as module
from app.network.definitions import LENET5, NETWORKS, Network
from app.network.graph import build_graph, find_network
from app.network.weights import Weights
from tests.support.networks_for_tests import TEST_NETWORKS, random_graph, random_images, score_scale
from tests.support.oracle import onnx_outputs
from tests.support.shell import user_error

ARRAYS = dict(random_graph(LENET5, bias=False).parameters)


def _weights(arrays: dict[str, np.ndarray], input_scale: float = 1 / 255) -> Weights:
    return Weights(arrays, "lenet5", Path("some/weights.h5"), input_scale=input_scale)


# Published network → its layer types; for some layers the output shape and the FLOPs, by hand from Σ 2·K·K·C·M·H·W.
PUBLISHED: dict[str, tuple[str, dict[str, tuple[Shape, int]]]] = {
    "lenet5": (
        "conv2d relu avgpool conv2d relu avgpool flatten linear relu linear argmax",
        {
            "conv1": ((32, 24, 24), 2 * 25 * 32 * 24 * 24),
            "relu1": ((32, 24, 24), 32 * 24 * 24),
            "pool1": ((32, 12, 12), 4 * 32 * 12 * 12),
            "conv2": ((64, 8, 8), 2 * 25 * 32 * 64 * 8 * 8),
            "pool2": ((64, 4, 4), 4 * 64 * 4 * 4),
            "flatten": ((1024,), 0),
            "fc1": ((128,), 2 * 1024 * 128),
        },
    ),
    "fa19": (
        "resize conv2d tanh maxpool conv2d flatten linear tanh linear softmax argmax",
        {
            "resize": ((1, 70, 70), 7 * 70 * 70),
            "conv1": ((12, 66, 66), 2 * 25 * 12 * 66 * 66),
            "tanh1": ((12, 66, 66), 12 * 66 * 66),
            "pool1": ((12, 33, 33), 4 * 12 * 33 * 33),
            "conv2": ((24, 29, 29), 2 * 25 * 12 * 24 * 29 * 29),
            "fc1": ((160,), 2 * 24 * 29 * 29 * 160),
            "softmax": ((10,), 40),
        },
    ),
    "k7": (
        "resize conv2d tanh maxpool conv2d flatten linear tanh linear softmax argmax",
        {
            "resize": ((1, 72, 72), 7 * 72 * 72),
            "conv1": ((12, 66, 66), 2 * 49 * 12 * 66 * 66),
            "conv2": ((24, 27, 27), 2 * 14_112 * 27 * 27),
            "fc1": ((160,), 2 * 24 * 27 * 27 * 160),
        },
    ),
    "minidnn86": (
        "resize conv2d relu maxpool conv2d relu maxpool flatten linear relu linear softmax argmax",
        {
            "resize": ((1, 86, 86), 7 * 86 * 86),
            "conv1": ((4, 80, 80), 2 * 49 * 4 * 80 * 80),
            "conv2": ((16, 34, 34), 2 * 49 * 4 * 16 * 34 * 34),
            "pool2": ((16, 9, 9), 16 * 16 * 9 * 9),
            "fc1": ((32,), 2 * 1296 * 32),
        },
    ),
    "mlp": ("flatten linear sigmoid linear softmax argmax", {"fc1": ((100,), 2 * 784 * 100), "sigmoid": ((100,), 100)}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_equal_the_published_ones(name: str) -> None:
    graph, (kinds, layers) = random_graph(NETWORKS[name], bias=False), PUBLISHED[name]
    network = graph.network
    assert [layer.kind for layer in network.layers] == kinds.split()
    assert (network.name, network.input_shape, network.pixel_scale) == (name, (1, 28, 28), 1 / 255)
    assert all(getattr(layer, "rule", "edge") == "edge" for layer in network.layers)
    assert [step.in_shape for step in graph.steps] == [(1, 28, 28), *(step.out_shape for step in graph.steps[:-1])]
    steps = {step.layer.name: step for step in graph.steps}
    found = {layer: (steps[layer].out_shape, steps[layer].layer.flops(steps[layer].in_shape)) for layer in steps}
    assert layers.items() <= found.items() and graph.class_count == 10
    assert found["fc2"] == ((10,), 20 * prod(steps["fc2"].in_shape)) and found["argmax"] == ((), 10)


def test_networks_are_found_by_name() -> None:
    assert all(find_network(name) is network and network.name == name for name, network in NETWORKS.items())
    with pytest.raises(UserError, match=r"unknown network 'lenet6': choose one of .*lenet5"):
        find_network("lenet6")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"fc1": None}, "fc1 is missing"),
        ({"fc3": np.zeros((2, 2), np.float32)}, "fc3 is not part of network lenet5"),
        ({"conv1": np.zeros((3, 3, 1, 32), np.float32)}, r"conv1 is \(3,3,1,32\)"),
        ({"fc1": np.zeros((128, 1024), np.float32)}, r"fc1 is \(128,1024\)"),
        ({"conv2_bias": np.zeros(32, np.float32)}, r"conv2_bias is \(32\)"),
        ({"pool1_bias": np.zeros(32, np.float32)}, "pool1_bias is not part.*; use weights made for this network$"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes: dict[str, np.ndarray | None], fault: str) -> None:
    merged = ARRAYS | changes
    weights = _weights({name: array for name, array in merged.items() if array is not None})
    assert re.match(f"some/weights.h5.*{fault}", user_error(lambda: build_graph(LENET5, weights)))


@pytest.mark.parametrize(
    ("layers", "fault"),
    [
        ((Flatten("flatten"), Linear("fc", 10)), "network bad must end with an Argmax layer"),
        ((Conv2d("conv", 2, kernel=9), Flatten("flatten"), Argmax("argmax")), "layer conv "),
        ((Linear("fc", 10), Argmax("argmax")), "layer fc "),
    ],
)
def test_networks_of_unsuitable_layers_are_refused(layers: tuple[Layer, ...], fault: str) -> None:
    arrays = {"fc": np.zeros((64, 10), np.float32)}
    with pytest.raises(UserError, match=fault):
        build_graph(Network("bad", "for tests", (1, 8, 8), layers), _weights(arrays))


@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_the_reference_does_not_depend_on_chunks(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, images = random_graph(network), random_images(network, 21)
    expected = graph.forward(images, np.float64)[0]
    assert expected.dtype == np.float64
    for chunk in (1, 20, 21, 100):
        monkeypatch.setattr(module, "REFERENCE_CHUNK", chunk)
        scores = graph.reference(images)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12 * np.abs(expected).max(), strict=True)


@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_the_reference_agrees_with_onnx_runtime(network: Network, bias: bool) -> None:
    graph, images = random_graph(network, bias=bias), random_images(network, 20)
    outputs = onnx_outputs(network, graph.parameters, images / np.float32(255))
    seen: list[str] = []
    scores, labels = graph.forward(images, np.float32, lambda layer: seen.append(layer.name))
    expected = outputs[network.layers[-2].name]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * score_scale(graph, expected), strict=True)
    np.testing.assert_array_equal(labels, outputs["argmax"])
    assert len(np.unique(labels)) > 1, "labels that are all the same would prove nothing"
    assert labels.dtype == np.uint8 and seen == [layer.name for layer in network.layers]
    precise = graph.reference(images)
    np.testing.assert_allclose(expected, precise, rtol=0, atol=1e-5 * score_scale(graph, precise))


def test_bytes_and_floats_give_the_same_scores() -> None:
    images = random_images(LENET5, 5)
    for scale in (1 / 255, 0.5 / 255, 1.0):
        graph = build_graph(LENET5, _weights(ARRAYS, input_scale=scale))
        np.testing.assert_allclose(graph.reference(images / 255), graph.reference(images), rtol=1e-9, atol=1e-12)


def test_the_reference_does_not_change_the_images() -> None:
    images = random_images(LENET5, 4) / 255 - 0.5
    before = images.copy()
    random_graph(LENET5).reference(images)
    np.testing.assert_array_equal(images, before)
