"""LeNet-5 with biases, as PyTorch keeps it: random arrays, and ONNX Runtime's labels from them."""

from typing import Any

import numpy as np

from app.network.toml import parse_network
from tests.support.networks_for_tests import layers_toml
from tests.support.oracle import run_nodes

LENET = parse_network(
    'name = "lenet_of_pytorch"\ninput = [1, 28, 28]\n'
    + layers_toml(
        *("conv2d maps=6 kernel=5 padding=2", "relu", "maxpool window=2"),
        *("conv2d maps=16 kernel=5", "relu", "maxpool window=2", "flatten"),
        *("linear outputs=120", "relu", "linear outputs=84", "relu", "linear outputs=10"),
    ),
    "lenet_of_pytorch.toml",
)
SHAPES = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
# As torch.nn.Sequential in two parts names them.
PREFIXES = {"conv1": "features.0", "conv2": "features.3", "fc1": "classifier.1", "fc2": "classifier.3"}
PREFIXES["fc3"] = "classifier.5"


def state(seed: int, prefixes: dict[str, str]) -> dict[str, np.ndarray]:
    """Random weights and biases, scaled so that all classes occur, under these prefixes."""
    rng = np.random.default_rng(seed)
    found = {}
    for layer, shape in SHAPES.items():
        deviation = 2 / np.sqrt(np.prod(shape[1:]))
        found[f"{prefixes[layer]}.weight"] = (rng.standard_normal(shape) * deviation).astype(np.float32)
        found[f"{prefixes[layer]}.bias"] = (rng.standard_normal(shape[0]) * 0.1).astype(np.float32)
    return found


def scores(arrays: dict[str, np.ndarray], prefixes: dict[str, str], images: np.ndarray) -> np.ndarray:
    """ONNX Runtime's scores (N, 10) of images (N, 1, 28, 28) uint8, from the arrays as PyTorch keeps them."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []

    def node(operator: str, layer: str | None = None, **attributes: Any) -> None:
        reads = [str(len(nodes)), *([f"{prefixes[layer]}.weight", f"{prefixes[layer]}.bias"] if layer else [])]
        nodes.append(helper.make_node(operator, reads, [str(len(nodes) + 1)], **attributes))

    for layer, padding in (("conv1", 2), ("conv2", 0)):
        node("Conv", layer, pads=[padding] * 4)
        node("Relu")
        node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    node("Flatten")
    for layer in ("fc1", "fc2", "fc3"):
        node("Gemm", layer, transB=1)
        if layer != "fc3":
            node("Relu")
    inputs = [helper.make_tensor_value_info("0", TensorProto.FLOAT, ["N", 1, 28, 28])]
    outputs = [helper.make_tensor_value_info(str(len(nodes)), TensorProto.FLOAT, ["N", 10])]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return run_nodes(nodes, inputs, outputs, constants, {"0": (images / np.float32(255)).astype(np.float32)})[0]
