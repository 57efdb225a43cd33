"""The networks, as data: a name, an input shape and a list of layers. Adding one touches no other file."""

from __future__ import annotations

from dataclasses import dataclass

from app.layers import Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, Relu, Shape


@dataclass(frozen=True)
class Network:
    """A network: what it reads and the layers it applies; it ends with an Argmax."""

    name: str
    summary: str
    input_shape: Shape  # (C, H, W) of one image
    layers: tuple[Layer, ...]


LENET5 = Network(
    name="lenet5",
    summary="two convolutions with average pooling, two fully connected layers, no padding",
    input_shape=(1, 28, 28),
    layers=(
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
)

NETWORKS: dict[str, Network] = {network.name: network for network in (LENET5,)}
