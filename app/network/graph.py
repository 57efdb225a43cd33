"""Combine a network with its weights: load or draw them, infer and check all shapes, and run the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import prod, sqrt
from pathlib import Path

import numpy as np

from app.base.errors import UserError, did_you_mean_hint, print_to_stderr
from app.base.frozen import Frozen
from app.files import shipped
from app.layers import Argmax, Layer, Parameters, Resize, Shape
from app.network.definitions import NETWORKS, network_by_name
from app.network.network import LEAST_SCALE, MOST_SCALE, LayerStep, Network
from app.network.quantised import QuantisedFilters
from app.network.toml import SUFFIX, read_network
from app.network.weights import DEFAULT_NETWORK, ENDINGS, Weights, check_shapes, load_weights

SEED = 0


def random_weights(network: Network) -> Weights:
    """Return seeded random weights, scaled to keep values finite. Every layer that can have a bias has one."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    for step in network.steps:
        for name, wanted in step.parameter_shapes.items():
            scale = 0.1 if name.endswith("_bias") else 1 / sqrt(prod(wanted[:-1]))
            arrays[name] = (scale * rng.standard_normal(wanted)).astype(np.float32)
    return Weights(arrays, network.name, Path("random weights"), definition=network)


REFERENCE_CHUNK = 128  # images: large enough for the matrix products, small enough for the caches


class Graph(Frozen):
    """The layers of a network with shapes and parameters. parameters: float32, in the weights file's layouts.

    input_scale: factor for uint8 pixels. quantised: 8-bit filters of a convolution; None if the weights have none.
    """

    network: Network
    steps: tuple[LayerStep, ...]
    parameters: Parameters
    input_scale: float
    quantised: QuantisedFilters | None = None

    @property
    def class_count(self) -> int:
        """Return the number of scores from which the final argmax chooses."""
        return self.steps[-1].in_shape[0]

    @cached_property
    def pixel_scale_step(self) -> int:
        """Return the index of the step whose input is scaled: the first that does not, like Resize, keep bytes."""
        return next(at for at, step in enumerate(self.steps) if not step.layer.keeps_bytes)

    def graph_for_shape(self, shape: Shape) -> Graph | None:
        """Return the graph for images of this shape, without Resize if already enlarged; None for other shapes."""
        if shape == self.network.input_shape:
            return self
        first = self.steps[0]
        if not isinstance(first.layer, Resize) or shape != first.out_shape:
            return None
        network = replace(self.network, input_shape=shape, layers=self.network.layers[1:])
        return replace(self, network=network, steps=self.steps[1:])

    def pixel_scale(self, dtype: np.dtype) -> float:
        """Return the factor for pixels of this dtype: floats are in [0, 1], bytes are 0 to 255."""
        return self.input_scale if dtype == np.uint8 else self.input_scale * 255

    def forward(
        self, images: np.ndarray, dtype: type, after_layer: Callable[[Layer], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the NumPy reference on (B, C, H, W) images in ``dtype``; return scores (B, classes), labels (B,) uint8.

        Scores are logits, or probabilities after a softmax. after_layer: called at the end of each layer, for timing.
        """
        scores = x = images
        with np.errstate(over="ignore", invalid="ignore"):  # infinite and NaN values show in the scores
            for at, step in enumerate(self.steps):
                x = self._apply_pixel_scale(at, x, dtype)
                scores, x = x, step.layer.reference(x, self.parameters)
                if after_layer is not None:
                    after_layer(step.layer)
        return scores, x

    def input_of_step(self, at: int, images: np.ndarray, dtype: type) -> np.ndarray:
        """Return the input of the step with index ``at``, (B, *input shape), computed from images in ``dtype``."""
        x = images
        with np.errstate(over="ignore", invalid="ignore"):
            for before, step in enumerate(self.steps[:at]):
                x = step.layer.reference(self._apply_pixel_scale(before, x, dtype), self.parameters)
        return self._apply_pixel_scale(at, x, dtype)

    def _apply_pixel_scale(self, at: int, x: np.ndarray, dtype: type) -> np.ndarray:
        """Return x, the input of step ``at``, as ``dtype`` and times the pixel scale if this is the step to scale."""
        return x.astype(dtype) * dtype(self.pixel_scale(x.dtype)) if at == self.pixel_scale_step else x

    def reference(self, images: np.ndarray, dtype: type = np.float64) -> np.ndarray:
        """Return the NumPy reference's scores (B, classes), computed in cache-sized chunks."""
        chunks = range(0, len(images), REFERENCE_CHUNK)
        return np.concatenate([self.forward(images[at : at + REFERENCE_CHUNK], dtype)[0] for at in chunks])


def find_network(text: str) -> Network:
    """Return a network by name, or from a network file (.toml) or weights file (.h5, .hdf5). Raises UserError."""
    if text.endswith(SUFFIX):
        return read_network(Path(text))
    if text.endswith(ENDINGS):
        return load_weights(Path(text)).stored_network()
    network = network_by_name(text)
    if network is None:
        known, hint = ", ".join(NETWORKS), did_you_mean_hint(text, NETWORKS)
        others = f"mlp_N with N hidden units, or a file NAME{SUFFIX} or WEIGHTS{ENDINGS[0]}"
        raise UserError(f"unknown network '{text}': choose one of {known}, {others}{hint}")
    return network


def build_graph(network: Network, weights: Weights) -> Graph:
    """Return the graph of a network, with shapes checked against the weights. Raises UserError if they do not fit."""
    steps = network.steps
    expected = {
        name: wanted
        for step in steps
        for name, wanted in step.parameter_shapes.items()
        # A bias that the network neither requires nor excludes is used where the file has it.
        if name in weights.arrays or not name.endswith("_bias") or getattr(step.layer, "bias", None)
    }
    if not isinstance(network.layers[-1], Argmax):
        raise UserError(f"network {network.name} must end with an Argmax layer")
    check_shapes(replace(weights, network=network.name), expected)  # the file may name another network
    scale = network.pixel_scale if weights.input_scale is None else weights.input_scale
    graph = Graph(network, steps, weights.arrays, scale, weights.quantised)
    _check_pixel_scale(graph, weights)
    if weights.classes is not None and len(weights.classes) != graph.class_count:
        named = f"{weights.path} names {len(weights.classes)} classes"
        raise UserError(f"{named}, network {network.name} has {graph.class_count}: correct its attribute 'classes'")
    return graph


def _check_pixel_scale(graph: Graph, weights: Weights) -> None:
    """Raise UserError if float32 cannot represent the first layer's weights multiplied by the pixel scale."""
    first = next((step for step in graph.steps if step.parameter_shapes), None)
    if first is None:
        return
    largest = float(np.abs(graph.parameters[first.layer.name]).max())
    if largest and not LEAST_SCALE <= largest * graph.input_scale <= MOST_SCALE:
        raise UserError(
            f"{weights.path}: attribute 'input_scale' of {graph.input_scale:g} takes the weights of {first.layer.name} "
            "beyond float32's range; correct it: 1/255 is right for pixels that were divided by 255"
        )


def load_network(network: str | None, weights: Path | None, *, shapes_only: bool = False) -> tuple[Graph, Weights]:
    """Return the graph and the weights of a network. network: name or file; None for that of the weights, or lenet5.

    weights: a file; None for the shipped ones. shapes_only: use random weights if the network has no shipped ones,
    instead of raising. Raises UserError.
    """
    found = None if network is None else find_network(network)
    if weights is not None:
        loaded = load_weights(weights)
    elif shapes_only:
        loaded = shipped_or_random_weights(found or find_network(DEFAULT_NETWORK))
    else:
        loaded = require_weights(network or DEFAULT_NETWORK)
    return build_graph(found or loaded.stored_network(), loaded), loaded


def network_graph(network: str) -> Graph:
    """Return a network's graph, by name or file, with its shipped weights or random ones. Raises UserError."""
    return load_network(network, None, shapes_only=True)[0]


def shipped_weights(network: Network) -> Weights | None:
    """Return the shipped weights of a network; None if there are none. Raises UserError for a damaged file.

    A network from a file may have the name of a shipped network, so this compares the layers.
    """
    path = shipped.weights_path(network.name)
    if not path.exists():
        return None
    found = load_weights(path)
    return found if found.stored_network().digest == network.digest else None


def require_weights(network: str, option: str = "--weights") -> Weights:
    """Return a network's shipped weights, by name or file. Raises UserError, naming ``option``, if there are none."""
    found = shipped_weights(find_network(network))
    if found is None:
        raise shipped.missing_weights_error(network, option)
    return found


def shipped_or_random_weights(network: Network) -> Weights:
    """Return a network's shipped weights; without any, print a note and return random ones, enough for timing."""
    found = shipped_weights(network)
    if found is not None:
        return found
    print_to_stderr(f"note: no weights of network {network.name} are shipped: random ones, seed {SEED}")
    return random_weights(network)
