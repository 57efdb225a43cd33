"""Load a network with weights: the user's, the shipped ones, or random ones where only shapes matter."""

from math import prod, sqrt
from pathlib import Path

import numpy as np

from app.base.errors import say
from app.files import shipped
from app.network.definitions import LENET5
from app.network.graph import Graph, build, find_network
from app.network.network import Network
from app.network.weights import Weights, load_weights

SEED = 0


def load_network(network: str | None, weights: Path | None, *, shapes_only: bool = False) -> tuple[Graph, Weights]:
    """Load a network by name or file; None for the network of the weights, else lenet5. Raises UserError.

    weights: a file; None for the shipped ones. shapes_only: use random weights for a network that has none shipped,
    instead of raising.
    """
    found = None if network is None else find_network(network)
    if weights is not None:
        loaded = load_weights(weights)
    elif shapes_only:
        loaded = weights_to_measure(found or LENET5)
    else:
        loaded = required_weights(network or LENET5.name)
    return build(found or loaded.own_network(), loaded), loaded


def network_graph(network: str) -> Graph:
    """Build the network of a name or file, with weights to measure. Raises UserError for an unknown one."""
    return load_network(network, None, shapes_only=True)[0]


def shipped_weights(network: Network) -> Weights | None:
    """Load the shipped weights of a network; None if there are none. Raises UserError for a damaged file.

    A network from a file may have a shipped network's name, so the computations are compared.
    """
    path = shipped.weights_path(network.name)
    if not path.exists():
        return None
    found = load_weights(path)
    return found if found.own_network().digest == network.digest else None


def required_weights(asked: str, option: str = "--weights") -> Weights:
    """Load the shipped weights of a network's name or file. Raises UserError naming ``option`` if there are none."""
    found = shipped_weights(find_network(asked))
    if found is None:
        raise shipped.missing(asked, option)
    return found


def weights_to_measure(network: Network) -> Weights:
    """Return the shipped weights, else random ones, noted on standard error: times do not depend on the values."""
    found = shipped_weights(network)
    if found is None:
        say(f"note: no weights of network {network.name} are shipped: random ones, seed {SEED}")
    return found or random_weights(network)


def random_weights(network: Network) -> Weights:
    """Return seeded random weights with all possible biases, scaled to keep values finite."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    for step in network.steps:
        for name, wanted in step.parameter_shapes.items():
            scale = 0.1 if name.endswith("_bias") else 1 / sqrt(prod(wanted[:-1]))
            arrays[name] = (scale * rng.standard_normal(wanted)).astype(np.float32)
    return Weights(arrays, network.name, Path("random weights"), definition=network)
