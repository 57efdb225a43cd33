"""Write MXNet's files, and compute a forward pass in their layout without the program's code."""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from app.layers import Activation, Argmax, Conv2d, Flatten, Layer, Linear, Resize, Softmax
from app.layers.pool import Pool
from app.network.definitions import Network
from app.network.toml import parse_network
from tests.support.networks_for_tests import layers_toml

VERSIONS = (0xF993FAC8, 0xF993FAC9)
NUMBERS = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}


def course_network(kernel: int, maps: tuple[int, int], units: int, size: int) -> Network:
    """Return a network of the family of systems 2 and 3 (``fa19`` and ``k7``)."""
    head = 'name = "old"\nsummary = "imported from MXNet"\ninput = [1, 28, 28]\npixel_scale = 1\n'
    layers = layers_toml(
        *(f'resize size={size} rule="course"', f"conv2d maps={maps[0]} kernel={kernel} bias=false", "tanh"),
        *("maxpool window=2", f"conv2d maps={maps[1]} kernel={kernel} bias=false", "flatten"),
        *(f"linear outputs={units} bias=true", "tanh", "linear outputs=10 bias=true", "softmax"),
    )
    return parse_network(head + layers, "test")


def record(array: np.ndarray, version: int, storage: int = 0) -> bytes:
    """Return one array's record in a list of arrays; version 1 has no storage type."""
    head = struct.pack("<I", version) + (struct.pack("<i", storage) if version == VERSIONS[1] else b"")
    shape = struct.pack(f"<I{array.ndim}q", array.ndim, *array.shape)
    device = struct.pack("<2i", 2, 7)  # a GPU, which is not here
    return head + shape + device + struct.pack("<i", NUMBERS[array.dtype.name]) + array.tobytes()


def params_file(arrays: Mapping[str, np.ndarray], version: int = VERSIONS[1]) -> bytes:
    """Return a .params file: a list of the arrays, in the mapping's order."""
    content = struct.pack("<3Q", 0x112, 0, len(arrays))
    content += b"".join(record(array, version) for array in arrays.values())
    names = [name.encode() for name in arrays]
    return content + struct.pack("<Q", len(names)) + b"".join(struct.pack("<Q", len(name)) + name for name in names)


def mxnet_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays by MXNet's names: ``conv1`` becomes ``arg:conv1_weight``."""
    return {f"arg:{name}{'' if name.endswith('_bias') else '_weight'}": array for name, array in arrays.items()}


def settings(layer: Layer, bias: bool) -> tuple[str, dict[str, str]]:
    """Return a layer's operator and settings, which are strings; ``New`` is the course's convolution."""
    match layer:
        case Conv2d(stride=1, padding=0) if not bias:
            return "New", {"kernel": f"({layer.kernel}, {layer.kernel})", "num_filter": str(layer.maps)}
        case Conv2d():
            square = {key: f"({n}, {n})" for key, n in (("kernel", layer.kernel), ("stride", layer.stride))}
            pad = {"pad": f"({layer.padding}, {layer.padding})"} if layer.padding else {}
            return "Convolution", {**square, **pad, "num_filter": str(layer.maps), "no_bias": str(not bias)}
        case Linear():
            return "FullyConnected", {"num_hidden": str(layer.outputs), **({} if bias else {"no_bias": "True"})}
        case Pool():
            square = {key: f"({n}, {n})" for key, n in (("kernel", layer.window), ("stride", layer.effective_stride))}
            full = {"pooling_convention": "full"} if layer.ceil else {}
            return "Pooling", {**square, **full, "pool_type": "max" if layer.is_max else "avg"}
        case Activation():
            return "Activation", {"act_type": layer.kind}
        case Flatten():
            return "Flatten", {}
        case Softmax():
            return "SoftmaxOutput", {}
    raise ValueError(layer)


def symbol(network: Network, names: Iterable[str], key: str = "attrs") -> dict[str, Any]:
    """Return the symbol file of a network. names: our names of its arrays."""
    nodes: list[dict[str, Any]] = [{"op": "null", "name": "data", "inputs": []}]
    known, head = set(names), 0
    for layer in network.layers:
        if isinstance(layer, Resize | Argmax):
            continue
        inputs = [[head, 0, 0]]
        arrays = [f"{layer.name}_weight", f"{layer.name}_bias"] if isinstance(layer, Conv2d | Linear) else []
        bias = f"{layer.name}_bias" in known
        if isinstance(layer, Softmax):
            arrays = ["softmax_label"]
        for name in arrays if bias else arrays[:1]:
            inputs.append([len(nodes), 0, 0])
            nodes.append({"op": "null", "name": name, "inputs": []})
        operator, values = settings(layer, bias)
        head = len(nodes)
        nodes.append({"op": operator, "name": layer.name, key: values, "inputs": inputs})
    found = [at for at, node in enumerate(nodes) if node["op"] == "null"]
    return {"nodes": nodes, "arg_nodes": found, "heads": [[head, 0, 0]], "attrs": {"mxnet_version": ["int", 1200]}}


def symbol_file(network: Network, names: Iterable[str], key: str = "attrs") -> bytes:
    return json.dumps(symbol(network, names, key)).encode()


def course_labels(network: Network, arrays: Mapping[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Return labels (N,) of enlarged images (N, S, S), pixels from 0 to 255, by the formulas of the course's family."""

    def convolved(x: np.ndarray, filters: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(x, filters.shape[2:], axis=(2, 3))
        return np.einsum("nchwpq,mcpq->nmhw", windows, filters.astype(np.float64), optimize=True)

    x = np.tanh(convolved(images[:, None].astype(np.float64), arrays["conv1"]))
    count, maps, height, width = x.shape
    x = x.reshape(count, maps, height // 2, 2, width // 2, 2).max(axis=(3, 5))
    x = convolved(x, arrays["conv2"]).reshape(count, -1)
    x = np.tanh(x @ arrays["fc1"].astype(np.float64).T + arrays["fc1_bias"])
    labels: np.ndarray = (x @ arrays["fc2"].astype(np.float64).T + arrays["fc2_bias"]).argmax(axis=1)
    return labels
