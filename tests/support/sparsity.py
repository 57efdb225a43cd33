"""Filters with 2:4 structured sparsity at random places."""

from typing import Any

import numpy as np


def two_of_four(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Which weights (K, K, in, out) stay: two of every four input maps, at random, as bools."""
    height, width, channels, maps = shape
    order = rng.permuted(np.tile(np.arange(4)[:, None], (height, width, channels // 4, 1, maps)), axis=3)
    return (order < 2).reshape(shape)


def drawn_two_of_four(rng: np.random.Generator) -> np.ndarray:
    """Filters (5, 5, 32, 64) with two weights of every four, float32."""
    shape = 5, 5, 32, 64
    return np.where(two_of_four(rng, shape), rng.standard_normal(shape), 0).astype(np.float32)


def thinned(problem: Any, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A convolution's parameters, with two weights of every four if the pair's problem says so."""
    if not getattr(problem, "sparse", False):
        return parameters
    filters = parameters["layer"]
    return {**parameters, "layer": filters * two_of_four(np.random.default_rng(9), filters.shape)}
