"""Test ``export`` and ``import``: every format keeps every number, with and without biases, in both directions."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.interchange.layout import convert_arrays
from app.interchange.named_arrays import torch_key
from app.interchange.source import ImportOptions, Source
from app.layers import Conv2d, Linear
from app.network.definitions import LENET5, MINIDNN86, MLP
from app.network.network import Network
from app.network.toml import network_toml
from app.network.weights import load_weights, save_weights
from tests.support.foreign_files import (
    channels_first,
    flat_dump,
    imported,
    npz_file,
    onnx_of_others,
    safetensors_file,
    state_dict_file,
)
from tests.support.mxnet_files import course_network, mxnet_names, params_file, symbol
from tests.support.networks_for_tests import ODD, random_graph
from tests.support.shell import Refuses

ENDINGS = (".onnx", ".safetensors", ".npz")


def skip_without_package(ending: str) -> None:
    package = {".onnx": "onnx", ".safetensors": "safetensors"}.get(ending)
    if package:
        pytest.importorskip(package)


@pytest.mark.grid
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("network", [LENET5, MINIDNN86, MLP, ODD], ids=lambda network: network.name)
def test_import_of_an_export_is_the_network(network: Network, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_package(ending)
    graph = random_graph(network)
    classes = [f"kind {at}" for at in range(graph.class_count)]
    save_weights(Path("a.h5"), graph.parameters, network=network, classes=classes, input_scale=1 / 3)
    assert main(["export", "a.h5", "--out", f"b{ending}"]) == 0
    told, content = capsys.readouterr().out, Path(f"b{ending}").read_bytes()
    assert main(["export", "a.h5", "--out", f"b{ending}", "--overwrite"]) == 0
    assert Path(f"b{ending}").read_bytes() == content
    assert main(["import", f"b{ending}", "--out", "c.h5"]) == 0
    found, before = load_weights(Path("c.h5")), load_weights(Path("a.h5"))
    assert found.definition == network and found.classes == tuple(classes) and found.input_scale == 1 / 3
    assert found.arrays.keys() == before.arrays.keys()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    assert ("fc1_bias" in told and "fc1.bias" in told) or ending == ".npz"
    if ending == ".onnx":
        assert "ONNX Runtime" in " ".join(capsys.readouterr().out.split())


def test_npz_has_the_names_of_weights_files() -> None:
    assert main(["export", "--network", "lenet5", "--out", "b.npz"]) == 0
    with np.load("b.npz", allow_pickle=False) as found:
        assert {*found} == {"conv1", "conv2", "fc1", "fc2", "lenet5-inference"}
        assert 'name = \\"lenet5\\"' in found["lenet5-inference"].item().decode()


def test_wrong_requests_give_one_line_errors(refuses: Refuses, place: Path) -> None:
    refuses(["export", "--out", "b.npz"], "nothing to export is named")
    refuses(["export", "--network", "lenet5", "--out", "b.h5"], "b.h5 has no known ending")
    assert not [*place.iterdir()]


# --- layers with and without a bias


Arrays = dict[str, np.ndarray]
MAPS = 3  # maps that fc1 reads, flattened
COURSE = course_network(3, (2, MAPS), 6, 12)
NETWORK = replace(  # without settings of biases: the arrays decide which layers have one
    COURSE, layers=tuple(replace(one, bias=None) if isinstance(one, Conv2d | Linear) else one for one in COURSE.layers)
)


def write_mxnet_files(arrays: Arrays, convolution: str) -> list[str]:
    """Write MXNet's files; return options of the import. convolution: operator of convolutions without a bias."""
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


def write_unnamed_arrays(content: bytes) -> list[str]:
    Path("old.bin").write_bytes(content)
    return ["--network", "net.toml"]


def rename_as_torch(arrays: Arrays) -> Arrays:
    return {torch_key(name): array for name, array in arrays.items()}


def write_onnx_model(arrays: Arrays) -> list[str]:
    """Write the network without its enlargement; return options of the import."""
    pytest.importorskip("onnx")
    plain = replace(NETWORK, layers=NETWORK.layers[1:], input_shape=(1, 12, 12))
    ours = {one.name: one.array for one in convert_arrays(Source(plain, arrays, {}))}
    Path("old.bin").write_bytes(onnx_of_others(plain, ours, 1.0).SerializeToString())
    return []


def to_weights_file_layout(name: str, array: np.ndarray) -> np.ndarray:
    """Return filters as (K, K, in, out) and matrices as (in, out), those of flattened maps over H, W, C."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if name == "fc1":
        outputs, inputs = array.shape
        return array.reshape(outputs, MAPS, -1).transpose(2, 1, 0).reshape(inputs, outputs)
    return array.T


WRITERS: dict[str, Callable[[Arrays], list[str]]] = {
    "MXNet's New": lambda arrays: write_mxnet_files(arrays, "New"),
    "MXNet's Convolution": lambda arrays: write_mxnet_files(arrays, "Convolution"),
    "mini-dnn": lambda arrays: write_unnamed_arrays(flat_dump(NETWORK, arrays)),
    "ONNX": write_onnx_model,
    "safetensors": lambda arrays: write_unnamed_arrays(safetensors_file(rename_as_torch(arrays))),
    "npz": lambda arrays: write_unnamed_arrays(npz_file(rename_as_torch(arrays))),
    "state dict": lambda arrays: write_unnamed_arrays(state_dict_file(rename_as_torch(arrays))),
}


@pytest.mark.parametrize("biases", [(), ("conv1",), ("conv2", "fc1"), ("fc1", "fc2"), ("conv1", "conv2", "fc1", "fc2")])
@pytest.mark.parametrize("kind", WRITERS)
def test_import_moves_every_number_to_its_place(kind: str, biases: tuple[str, ...]) -> None:
    Path("net.toml").write_text(network_toml(NETWORK))
    arrays = channels_first(NETWORK, biases=frozenset(biases))
    options = WRITERS[kind](arrays)
    assert main(["import", "old.bin", *options, "--out", "new.h5"]) == 0
    found = load_weights(Path("new.h5")).arrays
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], to_weights_file_layout(name, array), strict=True)


# --- files of real exporters: exported.zip contains one of each version, and the logits that its maker computed


ARCHIVE = zipfile.ZipFile(Path(__file__).with_name("exported.zip"))
EXPECTED = json.loads(ARCHIVE.read("expected.json"))


def patterned_images(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return (count, *shape) bytes by a formula that the makers of the files in exported.zip used, too."""
    size = count * int(np.prod(shape))
    return (np.arange(size, dtype=np.int64) ** 2 * 37 % 251).astype(np.uint8).reshape(count, *shape)


@pytest.mark.parametrize("name", EXPECTED)
def test_imported_networks_give_the_logits_of_their_makers(name: str, place: Path) -> None:
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    ARCHIVE.extractall(place)
    expected = np.array(EXPECTED[name])
    _, graph = imported(place / name, ImportOptions(name="m"))
    channels, *sides = graph.network.input_shape
    images = patterned_images(len(expected), (channels, *sides))
    if not name.startswith("torch"):  # Keras' images are (H, W, C)
        images = patterned_images(len(expected), (*sides, channels)).transpose(0, 3, 1, 2)
    ours = graph.reference(images)
    if name.startswith("torch"):  # the model ends with a log-softmax, which import leaves out
        ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
