"""Networks as TOML: the shipped files, round trips, and every fault with its line."""

from dataclasses import MISSING, replace
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.layers import AvgPool, Conv2d, Linear, MaxPool
from app.network.definitions import FOLDER, NETWORKS, Network, network_by_name
from app.network.graph import build_graph
from app.network.network import KINDS, LEAST_SCALE, MOST_SCALE, defaults_of
from app.network.toml import network_toml, parse_network, read_network
from app.network.weights import Weights
from tests.support.networks_for_tests import random_graph
from tests.support.random_networks import random_text

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_files_are_as_the_writer_writes_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    network = parse_network(text, path)
    assert network.name == path.stem and network.summary
    assert network_toml(network) == text


def test_mlp_comes_in_every_width() -> None:
    wide = network_by_name("mlp_500")
    assert wide is not None and wide.name == "mlp_500"
    assert wide.layers == tuple(Linear("fc1", 500) if x.name == "fc1" else x for x in NETWORKS["mlp"].layers)
    assert parse_network(network_toml(wide), "x") == wide


def test_the_digest_is_that_of_the_computation() -> None:
    lenet5 = NETWORKS["lenet5"]
    same = Network("other", "another summary", lenet5.input_shape, lenet5.layers)
    assert same.digest == lenet5.digest
    others = [
        Network("lenet5", lenet5.summary, (1, 32, 32), lenet5.layers),
        Network("lenet5", lenet5.summary, lenet5.input_shape, lenet5.layers, pixel_scale=1.0),
        Network("lenet5", lenet5.summary, lenet5.input_shape, (Conv2d("conv1", 32, 5, stride=2), *lenet5.layers[1:])),
    ]
    assert len({lenet5.digest, *(other.digest for other in others)}) == 4


# The networks of other people, in docs/networks/: input, kinds of layers, shapes after the poolings, and number of
# parameters, in which sizes of filters and products, padding and biases show.
BLOCK = "conv2d relu maxpool"
FILES: dict[str, tuple[tuple[int, ...], str, list[tuple[int, ...]], int]] = {
    "lenet5_original": (
        (1, 28, 28),
        "conv2d tanh avgpool conv2d tanh avgpool flatten linear tanh linear tanh linear",
        [(6, 14, 14), (16, 5, 5)],
        61_706,
    ),
    "keras_convnet": ((1, 28, 28), f"{BLOCK} {BLOCK} flatten linear", [(32, 13, 13), (64, 5, 5)], 34_826),
    "pytorch_mnist": ((1, 28, 28), f"conv2d relu {BLOCK} flatten linear relu linear", [(64, 12, 12)], 1_199_882),
    "cifar_lenet": (
        (3, 32, 32),
        f"{BLOCK} {BLOCK} flatten linear relu linear",
        [(32, 16, 16), (64, 8, 8)],
        2_156_490,
    ),
}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/networks").glob("*.toml")), ids=lambda path: path.stem)
def test_the_networks_of_other_people_are_files_without_names(path: Path) -> None:
    shape, kinds, pooled, parameters = FILES[path.stem]
    found = read_network(path)
    assert (found.name, found.input_shape) == (path.stem, shape)
    assert " ".join(layer.kind for layer in found.layers) == f"{kinds} argmax"
    graph = random_graph(found)
    assert [step.out_shape for step in graph.steps if isinstance(step.layer, AvgPool | MaxPool)] == pooled
    assert sum(array.size for array in graph.parameters.values()) == parameters
    assert f"(networks/{path.name})" in (ROOT / "docs/networks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("bias", ["true", "false"])
def test_bias_says_what_the_weights_must_have(bias: str) -> None:
    text = (ROOT / "docs/networks/lenet5_original.toml").read_text().replace("bias = true", f"bias = {bias}")
    network = parse_network(text, "lenet5_original.toml")
    right = dict(random_graph(network, bias=bias == "true").parameters)
    assert {name for name in right if name.endswith("_bias")} == (
        {f"{name}_bias" for name in ("conv1", "conv2", "fc1", "fc2", "fc3")} if bias == "true" else set()
    )
    if bias == "true":
        wrong, fault = {name: array for name, array in right.items() if name != "fc2_bias"}, "fc2_bias is missing"
    else:
        wrong, fault = right | {"conv1_bias": np.ones(6)}, "conv1_bias is not part of network lenet5_original"
    with pytest.raises(UserError, match=fault):
        build_graph(network, Weights(wrong, "", Path("w")))


SUMMARIES = ("", "plain", 'a "quoted" \\ one', "7×7 – ok")
SCALES = (1 / 255, 1.0, LEAST_SCALE, MOST_SCALE, 0.1, 1e-20, 123456.789)


def test_what_is_written_is_read_back() -> None:
    """Every kind of layer with every setting, at its default and at another value."""
    seen: dict[str, set[object]] = {}
    for seed in range(150):
        drawn = parse_network(random_text(seed), "x.toml")
        network = replace(drawn, summary=SUMMARIES[seed % 4], pixel_scale=SCALES[seed % 7])
        found = parse_network(network_toml(network), "x.toml")
        assert found == network and found.digest == network.digest, seed
        assert network_toml(found) == network_toml(network), seed
        for layer in drawn.layers:
            for key, default in defaults_of(layer).items():
                seen.setdefault(f"{layer.kind} {key}", set()).add(getattr(layer, key) == default)
    settings = {f"{name} {key}": default for name, kind in KINDS.items() for key, default in defaults_of(kind).items()}
    assert {name: seen.get(name) for name in settings} == {
        name: {False} if default is MISSING else {False, True} for name, default in settings.items()
    }
