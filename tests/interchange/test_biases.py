"""Layers with and without a bias: every format brings every number of its file to its place, and nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.interchange.layout import converted
from app.interchange.named_arrays import torch_name
from app.interchange.source import Source
from app.layers import Conv2d, Linear
from app.network.toml import network_toml
from app.network.weights import load_weights
from tests.support.foreign_files import (
    channels_first,
    flat_dump,
    npz_file,
    onnx_of_others,
    safetensors_file,
    state_dict_file,
)
from tests.support.mxnet_files import course_network, mxnet_names, params_file, symbol

Arrays = dict[str, np.ndarray]
MAPS = 3  # that fc1 reads, flattened
COURSE = course_network(3, (2, MAPS), 6, 12)
NETWORK = replace(  # in which the weights decide about biases
    COURSE, layers=tuple(replace(one, bias=None) if isinstance(one, Conv2d | Linear) else one for one in COURSE.layers)
)


def mxnet(arrays: Arrays, convolution: str) -> list[str]:
    """convolution: what a layer without a bias is written as; only the course's own may leave no_bias out."""
    found = symbol(NETWORK, arrays)
    for node in found["nodes"]:
        if node["op"] == "New":
            node["op"] = convolution
            node["attrs"] |= {} if convolution == "New" else {"no_bias": "True"}
        elif node["op"] == "Convolution" and convolution == "New":
            node |= {"op": "New", "attrs": {key: node["attrs"][key] for key in ("kernel", "num_filter")}}
    Path("symbol.json").write_text(json.dumps(found))
    Path("old.bin").write_bytes(params_file(mxnet_names(arrays)))
    return ["--symbol", "symbol.json"]


def named(content: bytes) -> list[str]:
    Path("old.bin").write_bytes(content)
    return ["--network", "net.toml"]


def torch_names(arrays: Arrays) -> Arrays:
    return {torch_name(name): array for name, array in arrays.items()}


def onnx(arrays: Arrays) -> list[str]:
    """Without the enlargement."""
    pytest.importorskip("onnx")
    plain = replace(NETWORK, layers=NETWORK.layers[1:], input_shape=(1, 12, 12))
    ours = {one.name: one.array for one in converted(Source(plain, arrays, {}))}
    Path("old.bin").write_bytes(onnx_of_others(plain, ours, 1.0).SerializeToString())
    return []


def in_our_layout(name: str, array: np.ndarray) -> np.ndarray:
    """Filters (K, K, in, out), matrices (in, out), those of flattened maps over H, W, C."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if name == "fc1":
        outputs, inputs = array.shape
        return array.reshape(outputs, MAPS, -1).transpose(2, 1, 0).reshape(inputs, outputs)
    return array.T


WRITERS: dict[str, Callable[[Arrays], list[str]]] = {
    "MXNet's New": lambda arrays: mxnet(arrays, "New"),
    "MXNet's Convolution": lambda arrays: mxnet(arrays, "Convolution"),
    "mini-dnn": lambda arrays: named(flat_dump(NETWORK, arrays)),
    "ONNX": onnx,
    "safetensors": lambda arrays: named(safetensors_file(torch_names(arrays))),
    "npz": lambda arrays: named(npz_file(torch_names(arrays))),
    "state dict": lambda arrays: named(state_dict_file(torch_names(arrays))),
}


@pytest.mark.parametrize("biases", [(), ("conv1",), ("conv2", "fc1"), ("fc1", "fc2"), ("conv1", "conv2", "fc1", "fc2")])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_number_of_a_file_comes_to_its_place(kind: str, biases: tuple[str, ...]) -> None:
    Path("net.toml").write_text(network_toml(NETWORK))
    arrays = channels_first(NETWORK, biases=frozenset(biases))
    options = WRITERS[kind](arrays)
    assert main(["import", "old.bin", *options, "--out", "new.h5"]) == 0
    found = load_weights(Path("new.h5")).arrays
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], in_our_layout(name, array), strict=True)
