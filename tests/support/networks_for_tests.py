"""Provide small graphs with random weights for tests."""

from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from app.base.precision import ROWS
from app.layers import (
    Activation,
    Argmax,
    AvgPool,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Relu,
    Resize,
    Shape,
    Sigmoid,
    Softmax,
    Tanh,
)
from app.network.definitions import NETWORKS, Network
from app.network.graph import Graph, build_graph
from app.network.quantised import QuantisedFilters
from app.network.verdicts import Reference, compare_labels
from app.network.weights import Weights
from app.planning.few_images import LONG_SUM


def network(name: str, input_shape: Shape, *layers: Layer) -> Network:
    return Network(name, "for tests", input_shape, layers)


def layers_toml(*layers: str) -> str:
    """Return the TOML tables of layers, given in words such as ``conv2d maps=6 kernel=5``."""
    tables = []
    for layer in layers:
        kind, *settings = layer.split()
        tables += ["[[layers]]", f'type = "{kind}"', *settings]
    return "".join(f"{line}\n" for line in tables)


# Everything lenet5 is not: odd sizes, H ≠ W, a stride, biases, a maximum, a window that is not its stride.
ODD = network(
    "odd",
    (3, 23, 19),
    *(Conv2d("conv1", maps=7, kernel=3, stride=2), Relu("relu1"), MaxPool("pool1", window=3, stride=2)),
    *(Conv2d("conv2", maps=17, kernel=2), MaxPool("pool2", window=2), Flatten("flatten")),
    *(Linear("fc1", outputs=37), Relu("relu2"), Linear("fc2", outputs=41), Argmax("argmax")),
)
# A network without convolutions, reading pixels straight into a matrix product.
FLAT = network(
    "flat",
    (1, 5, 9),
    *(Flatten("flatten"), Linear("fc1", outputs=13), Relu("relu"), Linear("fc2", outputs=3), Argmax("argmax")),
)
# Pools first by average over a whole map.
POOLED = network(
    "pooled",
    (1, 9, 8),
    *(Conv2d("conv1", maps=4, kernel=1), AvgPool("pool1", window=3), Relu("relu1")),
    *(Flatten("flatten"), Linear("fc1", outputs=10), Argmax("argmax")),
)
# Tanh where the networks of the seed systems have none: before an average, and after a pooling.
SMOOTH = network(
    "smooth",
    (2, 13, 11),
    *(Conv2d("conv1", maps=5, kernel=3), Tanh("tanh1"), AvgPool("pool1", window=2)),
    *(Conv2d("conv2", maps=9, kernel=2), MaxPool("pool2", window=2), Tanh("tanh2"), Flatten("flatten")),
    *(Linear("fc1", outputs=21), Tanh("tanh3"), Linear("fc2", outputs=11), Softmax("softmax"), Argmax("argmax")),
)
# Every pooling has windows over the border: a maximum in one pass with its convolution, a mean whose windows overlap in
# a pass of its own, a mean in one pass with its convolution.
OVERHANG = network(
    "overhang",
    (2, 19, 17),
    *(Conv2d("conv1", maps=6, kernel=3), Relu("relu1"), MaxPool("pool1", window=2, ceil=True)),
    AvgPool("pool2", window=3, stride=2, ceil=True),
    *(Conv2d("conv2", maps=9, kernel=2), Tanh("tanh1"), AvgPool("pool3", window=2, ceil=True)),
    *(Flatten("flatten"), Linear("fc1", outputs=11), Softmax("softmax"), Argmax("argmax")),
)
# Enlarges two channels, H ≠ W, to a size whose maps do not begin at multiples of four bytes.
ENLARGED = network(
    "enlarged",
    (2, 7, 9),
    *(Resize("resize", size=15), Conv2d("conv1", maps=5, kernel=4), Relu("relu1"), MaxPool("pool1", window=2)),
    *(Flatten("flatten"), Linear("fc1", outputs=10), Argmax("argmax")),
)
# Activations where no network of the seed systems has any: behind a Flatten, two in a row, behind the last product.
LATE = network(
    "late",
    (2, 9, 8),
    *(Conv2d("conv1", maps=6, kernel=3), MaxPool("pool1", window=2), Tanh("tanh1"), Relu("relu1")),
    *(Conv2d("conv2", maps=5, kernel=2), Flatten("flatten"), Tanh("tanh2")),
    *(Linear("fc1", outputs=9), Sigmoid("sigmoid"), Argmax("argmax")),
)
# No hidden layer: images of two channels straight to scores.
BARE = network("bare", (2, 4, 5), Flatten("flatten"), Linear("fc1", outputs=7), Argmax("argmax"))
# No fully connected layer: a convolution over the whole map gives the scores.
CONVOLVED = network(
    "convolved",
    (1, 6, 6),
    *(Conv2d("conv1", maps=8, kernel=6), Flatten("flatten"), Softmax("softmax"), Argmax("argmax")),
)
GENERAL = tuple(row.name for row in ROWS if not row.calibrated)  # precisions of every network
ORDERS = (LATE, BARE, CONVOLVED)
TEST_NETWORKS = (*NETWORKS.values(), ODD, FLAT, POOLED, SMOOTH, OVERHANG, ENLARGED, *ORDERS)


def random_graph(network: Network, seed: int = 0, *, bias: bool = True) -> Graph:
    """Return the network with seeded random weights, scaled so that activations neither vanish nor grow.

    With biases, the last one centres the logits (before a softmax or sigmoid), so that labels vary from image to image.
    """
    arrays = {name: array.copy() for name, array in _random_weights(network, seed, bias).items()}
    return build_graph(network, Weights(arrays, network.name, Path("random")))


@cache
def _random_weights(network: Network, seed: int, bias: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    shape = network.input_shape
    for layer in network.layers:
        for name, wanted in layer.parameter_shapes(shape).items():
            if bias or not name.endswith("_bias"):
                fan_in = int(np.prod(wanted[:-1])) or 1
                arrays[name] = (rng.standard_normal(wanted) / np.sqrt(fan_in)).astype(np.float32)
        shape = layer.output_shape(shape)
    if bias:
        last = [name for name in arrays if name.endswith("_bias")][-1]
        product = next(at for at, layer in enumerate(network.layers) if f"{layer.name}_bias" == last)
        behind = (layer for layer in network.layers[product:] if not isinstance(layer, Activation | Softmax))
        unscaled = replace(network, layers=(*network.layers[:product], *behind))
        graph = build_graph(unscaled, Weights(arrays, network.name, Path("random")))
        arrays[last] -= graph.reference(random_images(network, 32)).mean(axis=0).astype(np.float32)
    return arrays


def has_long_sums(graph: Graph) -> bool:
    """Return whether a plan cuts the sums of a fully connected layer into parts."""
    return any(step.layer.operation == "gemm" and prod(step.in_shape) >= LONG_SUM for step in graph.steps)


def multiplied(graph: Graph, factor: float = 1.0, **own: float) -> Graph:
    """Return a copy of the graph with parameters multiplied by their factor in ``own``, or else by ``factor``."""
    factors = {name: np.float64(own.get(name, factor)) for name in graph.parameters}
    parameters = {name: (array * factors[name]).astype(np.float32) for name, array in graph.parameters.items()}
    return replace(graph, parameters=parameters)


def rounded(graph: Graph) -> Graph:
    """Return a copy of the graph with weights rounded to float16."""
    parameters = {
        name: array if name.endswith("_bias") else array.astype(np.float16).astype(np.float32)
        for name, array in graph.parameters.items()
    }
    return replace(graph, parameters=parameters)


def with_bytes(graph: Graph) -> Graph:
    """Return the graph with 8-bit filters of its second convolution, rounded to nearest, and limits from few images."""
    _, second = (at for at, step in enumerate(graph.steps) if isinstance(step.layer, Conv2d))
    name = graph.steps[second].layer.name
    activations = graph.input_of_step(second, random_images(graph.network, 4), np.float32)
    limits = activations.max(axis=(0, 2, 3)) + np.float32(1e-3)
    w = graph.parameters[name] * limits[:, None]
    steps = np.abs(w).max(axis=(0, 1, 2)) / np.float32(127)
    return replace(graph, quantised=QuantisedFilters(name, np.rint(w / steps).astype(np.int8), limits, steps))


def score_scale(graph: Graph, scores: np.ndarray) -> float:
    """Return the magnitude of the scores before the last bias centres them; rounding errors are proportional to it."""
    biases = [np.abs(array).max() for name, array in graph.parameters.items() if name.endswith("_bias")]
    return float(max(np.abs(scores).max(), *biases[-1:], 0.0))


def check_labels(labels: np.ndarray, reference: Reference, dtype: str = "float32") -> None:
    """Check that every label equals the reference's, except in near-ties, which may be many among few images."""
    wrong = [found for found in compare_labels(labels, reference, "reference", dtype).differences if not found.excused]
    assert not wrong


def random_images(network: Network, count: int, seed: int = 1) -> np.ndarray:
    """Return random images for the network, (count, C, H, W) uint8, made by ``noise``."""
    return noise(network.input_shape, count, seed)


def noise(shape: Shape, count: int, seed: int | tuple[int, int]) -> np.ndarray:
    """Return images (count, C, H, W) uint8 of noise; half of nine regions, chosen for each image, are dark."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    dark = rng.random((count, channels, 3, 3)) < 0.5
    dark = dark[:, :, np.arange(height) * 3 // height][..., np.arange(width) * 3 // width]
    pixels = rng.integers(0, 256, dark.shape, dtype=np.uint8)
    return np.where(dark, pixels // 8, pixels)
