"""Weights to run a network with: the shipped ones, or random ones where only shapes matter."""

from math import prod, sqrt
from pathlib import Path

import numpy as np

from app.errors import say
from app.network import shipped
from app.network.graph import find_network
from app.network.network import Network
from app.network.weights import Weights, load_weights

SEED = 0


def shipped_weights(network: Network) -> Weights | None:
    """Load the shipped weights of this very network; None if there are none. Raises UserError for a damaged file.

    A network from a file may have a shipped network's name: what it computes decides.
    """
    path = shipped.weights_path(network.name)
    if not path.exists():
        return None
    found = load_weights(path)
    return found if found.own_network().digest == network.digest else None


def required_weights(asked: str, option: str = "--weights") -> Weights:
    """Load the shipped weights of the network that a name or a file gives; without any, the error names ``option``."""
    found = shipped_weights(find_network(asked))
    if found is None:
        raise shipped.missing(asked, option)
    return found


def weights_to_measure(network: Network) -> Weights:
    """Return the shipped weights, else random ones, with a note on standard error: no time depends on them."""
    found = shipped_weights(network)
    if found is None:
        say(f"note: no weights of network {network.name} are shipped: random ones, seed {SEED}")
    return found or random_weights(network)


def random_weights(network: Network) -> Weights:
    """Return seeded random weights, with every bias that the network may have, of a scale that keeps values finite."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    shape = network.input_shape
    for layer in network.layers:
        for name, wanted in layer.parameter_shapes(shape).items():
            scale = 0.1 if name.endswith("_bias") else 1 / sqrt(prod(wanted[:-1]))
            arrays[name] = (scale * rng.standard_normal(wanted)).astype(np.float32)
        shape = layer.output_shape(shape)
    return Weights(arrays, network.name, Path("random weights"), definition=network)
