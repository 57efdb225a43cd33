"""Small graphs with random weights, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.graph import Graph, build
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Linear, MaxPool, Relu
from app.networks import LENET5, Network
from app.weights import Weights

# Everything lenet5 is not: odd sizes, H ≠ W, a stride, biases, a maximum, a window that is not its stride.
ODD = Network(
    name="odd",
    summary="for tests",
    input_shape=(3, 23, 19),
    layers=(
        Conv2d("conv1", maps=7, kernel=3, stride=2),
        Relu("relu1"),
        MaxPool("pool1", window=3, stride=2),
        Conv2d("conv2", maps=17, kernel=2),
        MaxPool("pool2", window=2),
        Flatten("flatten"),
        Linear("fc1", outputs=37),
        Relu("relu2"),
        Linear("fc2", outputs=41),
        Argmax("argmax"),
    ),
)
# A network without convolutions, reading pixels straight into a matrix product.
FLAT = Network(
    name="flat",
    summary="for tests",
    input_shape=(1, 5, 9),
    layers=(Flatten("flatten"), Linear("fc1", outputs=13), Relu("relu"), Linear("fc2", outputs=3), Argmax("argmax")),
)
# Pools first by average over a whole map.
POOLED = Network(
    name="pooled",
    summary="for tests",
    input_shape=(1, 9, 8),
    layers=(
        Conv2d("conv1", maps=4, kernel=1),
        AvgPool("pool1", window=3),
        Relu("relu1"),
        Flatten("flatten"),
        Linear("fc1", outputs=10),
        Argmax("argmax"),
    ),
)
TEST_NETWORKS = (LENET5, ODD, FLAT, POOLED)


def random_graph(network: Network, seed: int = 0, *, bias: bool = True) -> Graph:
    """The network with seeded random weights, scaled so that activations neither vanish nor grow.

    With biases, the last one centres the logits, so that labels vary from image to image.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    shape = network.input_shape
    for layer in network.layers:
        for name, wanted in layer.parameter_shapes(shape).items():
            if bias or not name.endswith("_bias"):
                fan_in = int(np.prod(wanted[:-1])) or 1
                arrays[name] = (rng.standard_normal(wanted) / np.sqrt(fan_in)).astype(np.float32)
        shape = layer.output_shape(shape)
    weights = Weights(arrays, network.name, None, 1 / 255, None, {}, "", Path("random"))
    graph = build(network, weights)
    if bias:
        last = [name for name in arrays if name.endswith("_bias")][-1]
        arrays[last] -= graph.reference(random_images(network, 64)).mean(axis=0).astype(np.float32)
    return graph


def score_scale(graph: Graph, logits: np.ndarray) -> float:
    """The magnitude that rounding errors of the logits scale with: before the last bias centres them."""
    biases = [np.abs(array).max() for name, array in graph.parameters.items() if name.endswith("_bias")]
    return float(max(np.abs(logits).max(), *biases[-1:], 0.0))


def random_images(network: Network, count: int, seed: int = 1) -> np.ndarray:
    """(count, C, H, W) uint8, uniform."""
    return np.random.default_rng(seed).integers(0, 256, (count, *network.input_shape), dtype=np.uint8)
