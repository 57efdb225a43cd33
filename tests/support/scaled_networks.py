"""Make lenet5 with layers, maps and hidden values of any scale, and measure a plain implementation's errors."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from app.layers import Conv2d, Linear
from app.network.definitions import LENET5
from app.network.graph import Graph, build_graph
from app.network.weights import load_weights
from tests.support.kernel_oracle import rounded_layer, to_half, to_single
from tests.support.networks_for_tests import multiplied, random_graph, random_images

LAYERS = ("conv1", "conv2", "fc1", "fc2")


def images(count: int = 2, seed: int = 1) -> np.ndarray:
    """Return images (2 count, 1, 28, 28): ``count`` bright ones, then the same ones 64 times darker."""
    bright = random_images(LENET5, count, seed)
    return np.concatenate([bright, bright // 64])


def scaled(graph: Graph, factors: Sequence[float]) -> Graph:
    """Multiply each layer's weights by its factor and its bias by all factors so far, so scores by all factors."""
    so_far = accumulate(factors, operator.mul)
    biases = {f"{name}_bias": factor for name, factor in zip(LAYERS, so_far, strict=True)}
    return multiplied(graph, **dict(zip(LAYERS, factors, strict=True)), **biases)


def unit_scaled(graph: Graph, rng: np.random.Generator, decades: float) -> Graph:
    """Multiply every map and hidden value by a random factor, which the next layer's weights divide out."""
    parameters = {name: array.astype(np.float64) for name, array in graph.parameters.items()}
    taken_out: Any = np.ones(1)
    for name in LAYERS:
        weights = parameters[name]
        rows = weights.reshape(-1, len(taken_out), weights.shape[-1])  # channels are innermost, behind a Flatten too
        parameters[name] = (rows / taken_out[:, None]).reshape(weights.shape)
        if name != LAYERS[-1]:
            taken_out = 10 ** rng.uniform(-decades, decades, weights.shape[-1])
            for own in {name, f"{name}_bias"} & parameters.keys():
                parameters[own] = parameters[own] * taken_out
    return replace(graph, parameters={name: array.astype(np.float32) for name, array in parameters.items()})


def random_network(seed: int, hidden: int = 128, classes: int = 10) -> Graph:
    """Return lenet5 with other fully connected layers and random weights; odd seeds give biases."""
    layers = {"fc1": Linear("fc1", hidden), "fc2": Linear("fc2", classes)}
    network = replace(LENET5, layers=tuple(layers.get(layer.name, layer) for layer in LENET5.layers))
    return random_graph(network, seed, bias=bool(seed % 2))


unbiased, biased = cache(partial(random_network, 0)), cache(partial(random_network, 1))


@cache
def shipped() -> Graph:
    return build_graph(LENET5, load_weights())


def in_turn(graph: Graph, x: np.ndarray, narrow: Callable[[Any], Any]) -> np.ndarray:
    """Return a plain implementation's scores: operands rounded by ``narrow``, sums in float32 term by term."""
    y: Any = x.astype(np.float64)
    scale = graph.input_scale  # of the first layer's weights alone
    for step in graph.steps[:-1]:
        layer = step.layer
        if not isinstance(layer, Conv2d | Linear):
            y = layer.reference(y.astype(np.uint8 if layer.keeps_bytes else np.float32), graph.parameters)
            continue
        weights, bias = graph.parameters[layer.name] * scale, graph.parameters.get(f"{layer.name}_bias")
        types = {"input_dtype": "float32", "dtype": "float32", "output_dtype": "float32"}
        problem = layer.kernel_problem(step.in_shape, [], bias=bias is not None, **types)
        assert problem is not None
        y, scale = rounded_layer(problem, y, weights, bias, narrow), 1.0
    return y.astype(np.float64)


def errors(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the greatest errors of the bright and of the dark ``images``, divided by their greatest scores: (2,)."""
    of_image = np.abs(found - exact).max(axis=1), np.abs(exact).max(axis=1)
    most, scale = (values.reshape(2, -1).max(axis=1) for values in of_image)
    return most / scale


def plain_errors(graph: Graph, x: np.ndarray, precision: str) -> np.ndarray:
    """Return a plain implementation's ``errors`` in this precision, (2,)."""
    return errors(in_turn(graph, x, to_half if precision == "fp16" else to_single), graph.reference(x))
