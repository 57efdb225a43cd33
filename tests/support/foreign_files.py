"""Write weights files of other systems in their layouts, and import them."""

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.interchange.source import ImportOptions, Source
from app.layers import Argmax, Conv2d, Flatten, Linear, Resize
from app.network.definitions import Network
from app.network.graph import Graph, build_graph
from app.network.toml import parse_network
from app.network.weights import Weights
from app.tools.import_ import largest_difference, read_foreign_file

SMALL = parse_network(
    'name = "small"\ninput = [1, 6, 6]\n[[layers]]\ntype = "conv2d"\nmaps = 2\nkernel = 3\nbias = false\n'
    '[[layers]]\ntype = "flatten"\n[[layers]]\ntype = "linear"\noutputs = 3\nbias = false\n',
    "small.toml",
)


def imported(path: Path, asked: ImportOptions = ImportOptions()) -> tuple[Source, Graph]:  # noqa: B008
    """Return what ``import`` reads from a file, and the network that it makes of it, after the checks of ``import``."""
    _, source, found = read_foreign_file(path, asked)
    arrays = {one.name: one.array for one in found}
    graph = build_graph(source.network, Weights(arrays, source.network.name, path, input_scale=source.scale))
    largest_difference(source, graph)
    return source, graph


def channels_first(network: Network, *, biases: frozenset[str]) -> dict[str, np.ndarray]:
    """Return random filters (M, C, K, K), matrices (out, in), and biases (out,) of layers in ``biases``, by name."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    shape = network.input_shape
    for layer in network.layers:
        if isinstance(layer, Conv2d | Linear):
            wanted: tuple[int, ...]
            if isinstance(layer, Conv2d):
                wanted = (layer.maps, shape[0], layer.kernel, layer.kernel)
            else:
                wanted = (layer.outputs, shape[0])
            deviation = 1 / np.sqrt(np.prod(wanted[1:]))
            found[layer.name] = (rng.standard_normal(wanted) * deviation).astype(np.float32)
            if layer.name in biases:
                found[f"{layer.name}_bias"] = rng.standard_normal(wanted[0]).astype(np.float32)
        shape = layer.output_shape(shape)
    return found


def flat_dump(network: Network, arrays: Mapping[str, np.ndarray], order: str = "<") -> bytes:
    """Return mini-dnn's file: for each layer the number of floats, then the floats, weights before biases."""
    layers = [layer for layer in network.layers if not isinstance(layer, Resize | Flatten | Argmax)]
    content = struct.pack(f"{order}i", len(layers))
    for layer in layers:
        parts = [arrays[name].ravel() for name in (layer.name, f"{layer.name}_bias") if name in arrays]
        floats = np.concatenate([np.empty(0, np.float32), *parts]).astype(f"{order}f4")
        content += struct.pack(f"{order}i", floats.size) + floats.tobytes()
    return content


def safetensors_file(arrays: dict[str, np.ndarray]) -> bytes:
    return pytest.importorskip("safetensors.numpy").save(arrays)


def npz_file(arrays: dict[str, np.ndarray]) -> bytes:
    stream, named = io.BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(stream, **named)
    return stream.getvalue()


def state_dict_file(arrays: dict[str, np.ndarray]) -> bytes:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, stream)
    return stream.getvalue()


def onnx_of_others(network: Network, arrays: Mapping[str, np.ndarray], scale: float) -> Any:
    """Return the network's ONNX model as other systems write it: without this program's description."""
    model = onnx_model(Description(network, scale, None), arrays)
    del model.metadata_props[:]
    return model
