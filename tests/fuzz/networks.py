"""Networks as TOML: damaged texts, and well-formed ones whose values are nonsense."""

import json
from pathlib import Path
from random import Random
from typing import Any

from app.network.definitions import NETWORKS
from app.network.toml import network_toml, parse_network, read_network
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import VALUES, damaged
from tests.support.random_networks import random_network

TEXTS = [*map(network_toml, NETWORKS.values()), *(random_network(seed).text for seed in range(8))]
INPUTS = ([1, 28], [2, 28, 28], [3, 0, 9], [1, 1024, 2000], [3, 9, 9])
NUMBERS = (-1, 0, 1, 2, 7, 29, 1000, 99_999, 100_000, 2**31 - 1, 2**63, -(2**70), 10**30, 0.5, 1e308, True, "5", "")
TYPES: tuple[Any, ...] = (
    *("argmax", "conv2d", "Conv2d", "linear", "maxpool", "flatten", "resize", "softmax", "relu", "leakyrelu", 7),
)
KEYS = ("maps", "kernel", "stride", "padding", "bias", "window", "ceil", "slope", "outputs", "size", "rule", "name")
GARBAGE = (
    *("[" * 3000, "a." * 400 + "b = 1", "[[layers]]\n" * 10_000),
    *("[layers]", "= 1", 'x = "', "x = nan", "x = 1e999"),
)


def make(folder: Path) -> Pair:
    """A network's file: what is read is within limits and comes back equal from its own text."""

    def read(path: Path) -> None:
        network = read_network(path)
        assert network.layers[-1].kind == "argmax" and len({layer.name for layer in network.layers}) > 1
        shape = network.input_shape
        for layer in network.layers:
            shape = layer.output_shape(shape)
        assert shape == () and 0 < network.pixel_scale < float("inf")
        assert parse_network(network_toml(network), "again") == network

    return generate, read


def generate(rng: Random) -> bytes:
    """Damaged bytes, or lines that say something else, or more layers than any network has."""
    text = rng.choice(TEXTS)
    if rng.random() < 0.4:
        return damaged(rng, text.encode())
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        lines[at : at + rng.randrange(2)] = [_other(rng, lines[at])]
    if rng.random() < 0.02:
        lines += ["[[layers]]", 'type = "relu"'] * rng.choice((200, 10_000))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _other(rng: Random, line: str) -> str:
    """Another line in the place of this one or before it."""
    key, _, _ = line.partition(" = ")
    match rng.randrange(6):
        case 0:
            return f"{key or 'maps'} = {_toml(rng.choice(NUMBERS))}"
        case 1:
            return f"{rng.choice(KEYS)} = {_toml(rng.choice(NUMBERS))}"
        case 2:
            return f"type = {_toml(rng.choice(TYPES))}"
        case 3:
            return f"{key or 'input'} = {_toml(rng.choice((*VALUES, *INPUTS)))}"
        case 4:
            return line + rng.choice((" # x", "0", "[", ", 1", " = 2"))
    return rng.choice(GARBAGE)


def _toml(value: Any) -> str:
    """Mostly TOML."""
    return "{}" if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)


TARGETS = (Target("networks", 1400, make),)
