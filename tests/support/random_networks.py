"""Make random networks of the LeNet-5 family as TOML texts with weights; a seed identifies each.

``python -m tests.support.random_networks --seed N`` examines one on the CPU; with ``--device cuda`` also on the card.

Never drawn, because the planner has no kernel for it: an activation, pooling or softmax of raw pixels, which could
only follow a convolution or a fully connected layer; a flatten without a fully connected layer behind it. Fewer than
two classes are no network.
"""

import math
import sys
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tests.support.network_oracle import Description, described, outputs, parameter_shapes
from tests.support.networks_for_tests import noise

ACTIVATIONS = ("relu", "tanh", "sigmoid", "relu6", "leakyrelu")
SCALES: tuple[tuple[Any, float], ...] = ((None, 1 / 255), ("1/255", 1 / 255), (1, 1.0), (0.5, 0.5))  # text, number
MOST_PRODUCTS = 6_000_000  # for one image; lenet5 has 3.9 million
MOST_FEATURES = 3000
PIXEL_RMS = 100.0  # of random images, about
Layers = list[dict[str, Any]]


@dataclass(frozen=True)
class RandomNetwork:
    """A network's text, its description, and its float32 weights in the layout of a weights file."""

    seed: int
    text: str
    description: Description
    arrays: dict[str, np.ndarray]

    def images(self, count: int) -> np.ndarray:
        """Return random images, (count, C, H, W) uint8."""
        return noise(self.description.input_shape, count, (self.seed, 1))


def random_network(seed: int) -> RandomNetwork:
    """Return the network of this seed, the same at every call."""
    network = uncentred_network(seed)
    _centre(network)
    return network


def uncentred_network(seed: int) -> RandomNetwork:
    """Return ``random_network(seed)`` with a last bias that does not centre the scores, which takes no computation."""
    rng = Random(seed)
    text, description = _drawn(rng, seed)
    return RandomNetwork(seed, text, description, _arrays(description, rng, seed))


def random_text(seed: int) -> str:
    """Return the text of ``random_network(seed)`` without making its weights."""
    return _drawn(Random(seed), seed)[0]


def _drawn(rng: Random, seed: int) -> tuple[str, Description]:
    while True:
        text = _text(rng, seed)
        try:
            description = described(text)
        except (IndexError, ValueError):  # a window that is larger than its image
            continue
        if _sensible(description):
            return text, description


def _sensible(network: Description) -> bool:
    """Return whether every shape is possible and an image takes at most MOST_PRODUCTS products."""
    products = 0
    for layer in network.layers:
        if min(layer.out_shape) < 1 or (layer.kind == "flatten" and layer.out_shape[0] > MOST_FEATURES):
            return False
        sizes = [shape for name, shape in parameter_shapes(layer).items() if not name.endswith("_bias")]
        products += sum(math.prod(size) * math.prod(layer.out_shape[1:]) for size in sizes)
    return products <= MOST_PRODUCTS


def _text(rng: Random, seed: int) -> str:
    """Return a random network's text; its shapes may be impossible."""
    front, shape = _lenet5_front(rng) if rng.random() < 0.08 else _front(rng)
    layers = [*front, {"type": "flatten"}]
    if any(layer["type"] == "conv2d" for layer in front):
        layers += _activations(rng, 0.1)  # of features; pixels must meet weights first
    for _ in range(rng.choices(range(4), (3, 3, 3, 1))[0]):
        layers.append({"type": "linear", "outputs": rng.choice((rng.randint(8, 200), 32 * rng.randint(1, 6)))})
        layers += _activations(rng, 0.8)
    classes = rng.choices((rng.randint(2, 40), 10, 2, 256), (6, 6, 1, 1))[0]
    layers += [{"type": "linear", "outputs": classes}, *_activations(rng, 0.05)]
    layers += [{"type": "softmax"}] * rng.randrange(2)
    for layer in layers:
        if layer["type"] in ("conv2d", "linear"):
            layer |= rng.choice(({}, {}, {"bias": True}, {"bias": False}))
    if rng.random() < 0.5:
        layers = [{**layer, "name": f"{layer['type']}_{at}"} for at, layer in enumerate(layers)]
    head: dict[str, Any] = {"name": f"random{seed}", "summary": f"seed {seed}", "input": list(shape)}
    scale = rng.choice(SCALES)[0]
    return _toml(head if scale is None else {**head, "pixel_scale": scale}, layers)


def _front(rng: Random) -> tuple[Layers, tuple[int, int, int]]:
    """Return random layers before the flatten, and the shape of an image."""
    shape = rng.choice((1, 1, 3)), rng.randint(8, 96), rng.randint(8, 96)
    if rng.random() < 0.4:
        shape = rng.choice((1, 3)), 28, 28
    layers: Layers = []
    if rng.random() < 0.35:
        rule = rng.choice(({}, {"rule": "edge"}, *2 * [{"rule": "course"}]))
        layers.append({"type": "resize", "size": rng.choice((rng.randint(8, 96), 48, 70, 86)), **rule})
    for _ in range(rng.choices(range(6), (2, 5, 8, 5, 4, 4))[0]):
        kernel = rng.randint(1, rng.choice((7, 7, 11)))
        conv: dict[str, Any] = {"type": "conv2d", "maps": rng.randint(1, rng.choice((16, 64, 128)))}
        conv["kernel"] = kernel
        if rng.random() < 0.3:
            conv["stride"] = rng.randint(1, 3)
        if rng.random() < 0.4:
            conv["padding"] = rng.randrange(kernel)
        layers += [conv, *_activations(rng, 0.7)]
        if rng.random() < 0.6:
            layers += [_pool(rng), *_activations(rng, 0.15)]
    return layers, shape


def _lenet5_front(rng: Random) -> tuple[Layers, tuple[int, int, int]]:
    """Return lenet5's two convolutions, for which special kernels exist; seldom with a small change."""
    layers: Layers = []
    for maps in (32, 64):
        layers += [{"type": "conv2d", "maps": maps, "kernel": 5}, {"type": "relu"}, {"type": "avgpool", "window": 2}]
    if rng.random() < 0.3:
        layers[rng.choice((2, 5))] = {"type": "maxpool", "window": 2}
    return layers, (1, 28, 28)


def _activations(rng: Random, chance: float) -> Layers:
    """Return no activation, one, or seldom two in a row. chance: probability of at least one."""
    count = 0 if rng.random() > chance else 1 + (rng.random() < 0.08)
    kinds = [rng.choice((*ACTIVATIONS, "relu")) for _ in range(count)]
    slopes = [rng.choice(({}, {"slope": 0.3}, {"slope": 1})) if kind == "leakyrelu" else {} for kind in kinds]
    return [{"type": kind} | slope for kind, slope in zip(kinds, slopes, strict=True)]


def _pool(rng: Random) -> dict[str, Any]:
    pool: dict[str, Any] = {"type": rng.choice(("avgpool", "maxpool")), "window": rng.choice((1, 2, 2, 2, 3, 3, 4, 5))}
    if rng.random() < 0.3:
        pool["stride"] = rng.randint(1, 5)
    if rng.random() < 0.6:
        pool["ceil"] = rng.random() < 0.8
    if rng.random() < 0.5 and pool["window"] > 1:
        pool["padding"] = rng.randrange(1, pool["window"])
        pool["extra_padding"] = rng.randrange(pool["window"] - pool["padding"])
        if pool["type"] == "avgpool":
            pool["count_padding"] = rng.random() < 0.7
    return pool


def _toml(head: dict[str, Any], layers: Layers) -> str:
    tables = [_lines(head), *("[[layers]]\n" + _lines(layer) for layer in layers)]
    return "\n".join(tables)


def _lines(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _arrays(network: Description, rng: Random, seed: int) -> dict[str, np.ndarray]:
    """Return weights of varied scale that keep activations between about 1/30 and 30."""
    draw = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    rms, size = PIXEL_RMS * network.pixel_scale, 1.0
    for layer in network.layers:
        for name, shape in parameter_shapes(layer).items():
            is_bias = name.endswith("_bias")
            if is_bias and not layer.settings.get("bias", rng.random() < 0.5):
                continue
            if not is_bias:
                size = min(max(size * math.exp(rng.uniform(-1.2, 1.2)), 1 / 30), 30)
            std = 0.5 * size if is_bias else size / (rms * math.sqrt(math.prod(shape[:-1])))
            arrays[name] = (draw.standard_normal(shape) * std).astype(np.float32)
            rms = rms if is_bias else size
        if layer.kind in ("tanh", "sigmoid"):
            rms = size = 0.5
    return arrays


def _centre(network: RandomNetwork) -> None:
    """Change the last bias, if there is one, so that it centres the scores."""
    layers = network.description.layers
    at = max(at for at, layer in enumerate(layers) if layer.kind == "linear")
    bias = network.arrays.get(f"{layers[at].name}_bias")
    if bias is not None:
        images = noise(network.description.input_shape, 16, (network.seed + 1, 1))
        bias -= outputs(network.description, network.arrays, images)[at].mean(axis=0).astype(np.float32)


def main() -> int:
    """Examine one network; an AssertionError says what differs."""
    from app.terminal.console import Parser, whole_number_type
    from tests.support import random_networks_checked as checked

    parser = Parser(prog="python -m tests.support.random_networks", description=__doc__)
    parser.add_argument("--seed", type=whole_number_type(0, 2**32 - 1), required=True, help="the network's number")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: also on the card")
    options = parser.parse_args()
    network = random_network(options.seed)
    print(network.text)
    checked.check_on_cpu(network)
    checked.check_plans(network)
    if options.device == "cuda":
        checked.check_on_card(network)
    print(f"seed {options.seed}: everything agrees")
    return 0


if __name__ == "__main__":
    sys.exit(main())
