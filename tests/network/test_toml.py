"""Networks as TOML: the shipped files, round trips, and every fault with its line."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from app.errors import UserError
from app.layers import (
    ACTIVATIONS,
    Argmax,
    AvgPool,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Relu,
    Resize,
    Shape,
    Sigmoid,
    Softmax,
    Tanh,
)
from app.network.definitions import FOLDER, NETWORKS, SYSTEMS, Network, named
from app.network.graph import build
from app.network.limits import LEAST_SCALE, MOST_SCALE
from app.network.toml import network_toml, parse_network, read_network
from app.network.toml_writing import KINDS, defaults_of
from app.network.weights import Weights

ROOT = Path(__file__).parents[2]


def tanh_layers(size: int, kernel: int) -> tuple[Layer, ...]:
    """Systems 2 and 3, which differ in the size of the enlarged images and of the filters."""
    return (
        Resize("resize", size=size),
        Conv2d("conv1", maps=12, kernel=kernel),
        Tanh("tanh1"),
        MaxPool("pool1", window=2),
        Conv2d("conv2", maps=24, kernel=kernel),
        Flatten("flatten"),
        Linear("fc1", outputs=160),
        Tanh("tanh2"),
        Linear("fc2", outputs=10),
        Softmax("softmax"),
        Argmax("argmax"),
    )


SHIPPED: dict[str, tuple[Layer, ...]] = {
    "lenet5": (
        Conv2d("conv1", maps=32, kernel=5),
        Relu("relu1"),
        AvgPool("pool1", window=2),
        Conv2d("conv2", maps=64, kernel=5),
        Relu("relu2"),
        AvgPool("pool2", window=2),
        Flatten("flatten"),
        Linear("fc1", outputs=128),
        Relu("relu3"),
        Linear("fc2", outputs=10),
        Argmax("argmax"),
    ),
    "fa19": tanh_layers(size=70, kernel=5),
    "k7": tanh_layers(size=72, kernel=7),
    "minidnn86": (
        Resize("resize", size=86),
        Conv2d("conv1", maps=4, kernel=7),
        Relu("relu1"),
        MaxPool("pool1", window=2),
        Conv2d("conv2", maps=16, kernel=7),
        Relu("relu2"),
        MaxPool("pool2", window=4, ceil=True),
        Flatten("flatten"),
        Linear("fc1", outputs=32),
        Relu("relu3"),
        Linear("fc2", outputs=10),
        Softmax("softmax"),
        Argmax("argmax"),
    ),
    "mlp": (
        Flatten("flatten"),
        Linear("fc1", outputs=100),
        Sigmoid("sigmoid"),
        Linear("fc2", outputs=10),
        Softmax("softmax"),
        Argmax("argmax"),
    ),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_shipped_files_are_the_networks_of_the_systems(name: str) -> None:
    network = NETWORKS[name]
    assert (network.name, network.input_shape, network.pixel_scale) == (name, (1, 28, 28), 1 / 255)
    assert network.layers == SHIPPED[name]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_files_are_as_the_writer_writes_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    network = parse_network(text, path)
    assert network.name == path.stem and network.summary
    assert network_toml(network) == text


def test_mlp_comes_in_every_width() -> None:
    wide = named("mlp_500")
    assert wide is not None and wide.name == "mlp_500"
    assert wide.layers == tuple(Linear("fc1", 500) if x.name == "fc1" else x for x in SHIPPED["mlp"])
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


def test_the_original_lenet5_is_a_file_without_names() -> None:
    found = read_network(ROOT / "docs/networks/lenet5_original.toml")
    assert (found.name, found.input_shape) == ("lenet5_original", (1, 28, 28))
    assert found.layers == (
        Conv2d("conv1", maps=6, kernel=5, padding=2, bias=True),
        Tanh("tanh1"),
        AvgPool("pool1", window=2),
        Conv2d("conv2", maps=16, kernel=5, bias=True),
        Tanh("tanh2"),
        AvgPool("pool2", window=2),
        Flatten("flatten"),
        Linear("fc1", outputs=120, bias=True),
        Tanh("tanh3"),
        Linear("fc2", outputs=84, bias=True),
        Tanh("tanh4"),
        Linear("fc3", outputs=10, bias=True),
        Argmax("argmax"),
    )
    steps = build(found, Weights({name: np.ones(shape) for name, shape in ORIGINAL.items()}, "", Path("w"))).steps
    assert [step.out_shape for step in steps if isinstance(step.layer, AvgPool)] == [(6, 14, 14), (16, 5, 5)]


ORIGINAL = {
    "conv1": (5, 5, 1, 6),
    "conv1_bias": (6,),
    "conv2": (5, 5, 6, 16),
    "conv2_bias": (16,),
    "fc1": (400, 120),
    "fc1_bias": (120,),
    "fc2": (120, 84),
    "fc2_bias": (84,),
    "fc3": (84, 10),
    "fc3_bias": (10,),
}


@pytest.mark.parametrize("path", [ROOT / "docs/networks/lenet5_original.toml"])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_bias_says_what_the_weights_must_have(path: Path, bias: str) -> None:
    network = parse_network(path.read_text().replace("bias = true", f"bias = {bias}"), path)
    right = {name: np.ones(size) for name, size in ORIGINAL.items() if bias == "true" or not name.endswith("_bias")}
    assert build(network, Weights(right, "", Path("w"))).parameters.keys() == right.keys()
    if bias == "true":
        wrong, fault = {name: array for name, array in right.items() if name != "fc2_bias"}, "fc2_bias is missing"
    else:
        wrong, fault = right | {"conv1_bias": np.ones(6)}, "conv1_bias is not part of network lenet5_original"
    with pytest.raises(UserError, match=fault):
        build(network, Weights(wrong, "", Path("w")))


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Networks of every kind of layer, with every setting."""
    side, channels = draw(st.integers(6, 60)), draw(st.sampled_from([1, 3]))
    shape: Shape = (channels, side, side)
    layers: list[Layer] = []

    def add(kind: str, **settings: Any) -> None:
        """Add a layer; switches such as a pooling's ceil are drawn, too."""
        nonlocal shape
        for key, default in defaults_of(KINDS[kind]).items():
            if isinstance(default, bool):
                settings[key] = draw(st.booleans())
        name = draw(st.sampled_from(["a", "z_", "conv", "argmax"])) + str(len(layers))
        layers.append(KINDS[kind](name, **settings))
        shape = layers[-1].output_shape(shape)

    bias = st.sampled_from([None, True, False])
    if draw(st.booleans()):
        add("resize", size=draw(st.integers(1, 60)))
    for _ in range(draw(st.integers(0, 2))):
        kernel = draw(st.integers(1, min(shape[1:])))
        settings = {"stride": draw(st.integers(1, 3)), "padding": draw(st.integers(0, kernel - 1)), "bias": draw(bias)}
        add("conv2d", maps=draw(st.integers(1, 9)), kernel=kernel, **settings)
        if draw(st.booleans()):
            add(draw(st.sampled_from(sorted(ACTIVATIONS))))
        if draw(st.booleans()):
            window, stride = draw(st.integers(1, min(shape[1:]))), draw(st.none() | st.integers(1, 3))
            add(draw(st.sampled_from(["avgpool", "maxpool"])), window=window, stride=stride)
    add("flatten")
    for outputs in draw(st.lists(st.integers(2, 256), min_size=1, max_size=3)):
        add("linear", outputs=outputs, bias=draw(bias))
    if draw(st.booleans()):
        add("softmax")
    scale = draw(st.sampled_from([1 / 255, 1.0]) | st.floats(LEAST_SCALE, MOST_SCALE))
    summary = draw(st.sampled_from(["", "plain", 'a "quoted" \\ one', "7×7 – ok"]))
    return Network("x", summary, (channels, side, side), (*layers, Argmax("argmax")), scale)


@settings(max_examples=150)
@given(networks())
def test_what_is_written_is_read_back(network: Network) -> None:
    found = parse_network(network_toml(network), "x.toml")
    assert found == network and found.digest == network.digest
    assert network_toml(found) == network_toml(network)
