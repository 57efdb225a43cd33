"""Make filters with 2:4 structured sparsity at random places."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from app.files.shipped import weights_path
from app.kernels.plain_problems import GROUP, KEPT, is_two_of_four
from app.network.graph import Graph
from app.network.weights import Weights, load_weights


def two_of_four(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return which weights (K, K, in, out) stay: two of every four input maps, at random, as bools."""
    height, width, channels, maps = shape
    order = rng.permuted(np.tile(np.arange(4)[:, None], (height, width, channels // 4, 1, maps)), axis=3)
    return (order < 2).reshape(shape)


def drawn_two_of_four(rng: np.random.Generator) -> np.ndarray:
    """Return filters (5, 5, 32, 64) with two weights of every four, float32."""
    shape = 5, 5, 32, 64
    return np.where(two_of_four(rng, shape), rng.standard_normal(shape), 0).astype(np.float32)


def sparsity_patterns(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return masks (K, K, in, out) of weights to keep: the six pairs of positions in every four, and random ones."""
    place = np.arange(shape[2])[:, None] % GROUP
    found = {str(two): np.broadcast_to(np.isin(place, two), shape) for two in combinations(range(GROUP), KEPT)}
    rng = np.random.default_rng(6)
    return found | {f"drawn {d}": two_of_four(rng, shape) & (rng.random(shape) < d) for d in (1, 0.5, 0.05, 0)}


def with_sparse_conv2(graph: Graph, *others: str) -> Graph:
    """Return the network with two of every four weights of conv2 and of the other layers named."""
    rng, changed = np.random.default_rng(0), {}
    for name in ("conv2", *others):
        filters = graph.parameters[name]
        changed[name] = filters * two_of_four(rng, filters.shape)
    return replace(graph, parameters={**graph.parameters, **changed})


def shipped_lenet5(sparse: bool) -> Weights:
    """Return the shipped weights of lenet5 whose conv2 is 2:4 sparse, or those whose conv2 is not."""
    weights = load_weights(weights_path("lenet5" if sparse else "lenet5_dense"))
    assert is_two_of_four(weights.arrays["conv2"]) == sparse
    return weights


def exact_operands(images: int, kept: np.ndarray, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return images and filters of lenet5's convolutions whose results float16 holds, in any order of additions.

    Few pixels are not zero, conv1 only moves them, and all numbers are whole. kept: which weights (5, 5, 32, 64) of
    conv2 stay.
    """
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((images, 1, 28, 28)) < 0.05, 4, 0).astype(np.uint8)
    first = np.zeros((25, 1, 32))
    first[np.arange(32) % 25, 0, np.arange(32)] = 1
    second = rng.integers(1, 9, kept.shape) * rng.choice([-1.0, 1.0], kept.shape) * kept
    return x, {"layer1": first.reshape(5, 5, 1, 32), "layer2": second}


def thinned(problem: Any, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a convolution's parameters, with two weights of every four if its problem, or the pair's, says so."""
    if not getattr(problem, "sparse", False):
        return parameters
    filters = parameters["layer"]
    return {**parameters, "layer": filters * two_of_four(np.random.default_rng(9), filters.shape)}
