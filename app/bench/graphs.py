"""Build networks to measure: with shipped weights, else with random ones, since no time depends on the weights."""

from pathlib import Path

import numpy as np

from app.network import shipped
from app.network.graph import Graph, build, find_network
from app.network.weights import Weights, load_weights
from app.training.recipes import recipe_of


def network_graph(name: str, seed: int = 0) -> Graph:
    """Build the network of that name, ready to plan. Raises UserError for an unknown one."""
    network = find_network(name)
    path = shipped.weights_path(name)
    if path.exists():
        return build(network, load_weights(path))
    recipe = recipe_of(name)
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    shape = network.input_shape
    for layer in network.layers:
        for array, wanted in layer.parameter_shapes(shape).items():
            if (recipe and layer.name in recipe.biases) or not array.endswith("_bias"):  # biases as in training
                arrays[array] = (0.1 * rng.standard_normal(wanted)).astype(np.float32)
        shape = layer.output_shape(shape)
    return build(network, Weights(arrays, name, Path("random")))
