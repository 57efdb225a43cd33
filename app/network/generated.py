"""Make random weights, for work in which only shapes matter."""

from math import prod, sqrt
from pathlib import Path

import numpy as np

from app.network.network import Network
from app.network.weights import Weights

SEED = 0


def random_weights(network: Network) -> Weights:
    """Return seeded random weights with all possible biases, scaled to keep values finite."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    for step in network.steps:
        for name, wanted in step.parameter_shapes.items():
            scale = 0.1 if name.endswith("_bias") else 1 / sqrt(prod(wanted[:-1]))
            arrays[name] = (scale * rng.standard_normal(wanted)).astype(np.float32)
    return Weights(arrays, network.name, Path("random weights"), definition=network)
