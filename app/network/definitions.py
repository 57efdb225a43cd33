"""The networks as data: a name, an input shape and a list of layers. A new network touches no other file."""

import hashlib
import re
from dataclasses import dataclass

from app.layers import (
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


@dataclass(frozen=True)
class Network:
    """A network: the shape of its input and its layers, the last of which is an Argmax."""

    name: str
    summary: str
    input_shape: Shape  # (C, H, W) of one image
    layers: tuple[Layer, ...]

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the computation: input shape and layers, without the name."""
        return hashlib.sha256(repr((self.input_shape, self.layers)).encode()).hexdigest()


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


def _tanh_network(name: str, size: int, kernel: int) -> Network:
    """Systems 2 and 3, which differ in the size of the enlarged images and of the filters."""
    return Network(
        name=name,
        summary=f"two {kernel}x{kernel} convolutions with tanh and maximum pooling, two fully connected layers",
        input_shape=(1, 28, 28),
        layers=(
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
        ),
    )


FA19 = _tanh_network("fa19", size=70, kernel=5)
K7 = _tanh_network("k7", size=72, kernel=7)

MINIDNN86 = Network(
    name="minidnn86",
    summary="two 7x7 convolutions with maximum pooling by 2 and by 4, two fully connected layers",
    input_shape=(1, 28, 28),
    layers=(
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
)


def _mlp(name: str, hidden: int) -> Network:
    """System 5, which was built in several widths."""
    return Network(
        name=name,
        summary="two fully connected layers with a sigmoid between them",
        input_shape=(1, 28, 28),
        layers=(
            Flatten("flatten"),
            Linear("fc1", outputs=hidden),
            Sigmoid("sigmoid"),
            Linear("fc2", outputs=10),
            Softmax("softmax"),
            Argmax("argmax"),
        ),
    )


MLP = _mlp("mlp", hidden=100)

NETWORKS: dict[str, Network] = {network.name: network for network in (LENET5, FA19, K7, MINIDNN86, MLP)}


def family(name: str) -> str:
    """Return the listed network of which this name is a variant: ``mlp_500`` → ``mlp``; other names unchanged."""
    return "mlp" if re.fullmatch(r"mlp_[1-9][0-9]{0,4}", name) else name


def named(name: str) -> Network | None:
    """Find a network by name; ``mlp_500`` is mlp with 500 hidden units. None if there is none."""
    return _mlp(name, int(name.removeprefix("mlp_"))) if family(name) != name else NETWORKS.get(name)
