"""Networks as TOML: the shipped files, round trips, and every fault with its line."""

from pathlib import Path

import pytest

from app.layers import Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Relu, Resize, Sigmoid, Softmax, Tanh
from app.network.definitions import FOLDER, NETWORKS, SYSTEMS, Network, named
from app.network.toml import network_toml, parse_network


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
        MaxPool("pool2", window=4),
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
