"""Layers with and without a bias: every format brings exactly the biases that its file has."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.interchange.layout import converted
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.interchange.source import Source
from app.interchange.writers import torch_name
from app.layers import Conv2d, Linear
from app.network.toml import network_toml
from app.network.weights import load_weights
from tests.interchange.test_named_arrays import npz_file, safetensors_file, state_dict_file
from tests.support.foreign_files import channels_first, flat_dump
from tests.support.mxnet_files import course_network, mxnet_names, params_file, symbol

Arrays = dict[str, np.ndarray]
COURSE = course_network(3, (2, 3), 6, 12)
NETWORK = replace(  # in which the weights decide about biases
    COURSE,
    layers=tuple(replace(one, bias=None) if isinstance(one, Conv2d | Linear) else one for one in COURSE.layers),
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
    """Without the enlargement and our description, as the models of others are."""
    pytest.importorskip("onnx")
    plain = replace(NETWORK, layers=NETWORK.layers[1:], input_shape=(1, 12, 12))
    ours = {one.name: one.array for one in converted(Source(plain, arrays, {}))}
    model = onnx_model(Description(plain, 1.0, None), ours)
    del model.metadata_props[:]
    Path("old.bin").write_bytes(model.SerializeToString())
    return []


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
def test_each_layer_has_the_bias_that_the_file_has(
    kind: str, biases: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.toml").write_text(network_toml(NETWORK))
    arrays = channels_first(NETWORK, biases=frozenset(biases))
    options = WRITERS[kind](arrays)
    assert main(["import", "old.bin", *options, "--out", "new.h5"]) == 0
    found = load_weights(Path("new.h5")).arrays
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[f"{layer}_bias"], arrays[f"{layer}_bias"]) for layer in biases)
