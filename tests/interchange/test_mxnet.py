"""Test the import of MXNet's files of both versions, with the network from a symbol, a description or the shapes."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.interchange.source import ImportOptions, read_source_file
from app.layers import Resize
from app.network.graph import build_graph
from app.network.toml import network_toml, parse_network
from app.network.weights import load_weights
from tests.support.foreign_files import channels_first
from tests.support.mxnet_files import (
    VERSIONS,
    course_labels,
    course_network,
    mxnet_names,
    params_file,
    symbol,
    symbol_file,
)
from tests.support.networks_for_tests import layers_toml, random_images

# Kernel, maps, units, size of the networks in old files, and of system 3.
OLD = [(5, (6, 16), 140, 48), (7, (12, 24), 160, 48), (7, (12, 24), 160, 72)]
HOW = ("attrs", "attr", "toml", "shapes")  # key of settings in the symbol, or what replaces the symbol
FULL = frozenset({"fc1", "fc2"})  # layers with a bias


def shuffle_arrays(arrays: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    names = np.random.default_rng(seed).permutation(list(arrays))
    return {str(name): arrays[str(name)] for name in names}


@pytest.mark.parametrize(("how", "version", "old"), [*zip(HOW, VERSIONS * 2, (*OLD, OLD[0]), strict=True)])
def test_old_files_are_imported_and_classify(
    how: str, version: int, old: tuple[int, tuple[int, int], int, int], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = course_network(*old)
    arrays = channels_first(network, biases=FULL)
    arrays["conv1"] /= 128  # the network reads pixels up to 255, which would saturate tanh
    for name in FULL:
        arrays[f"{name}_bias"] /= 100  # so that labels depend on the images
    (place / "old.params").write_bytes(params_file(shuffle_arrays(mxnet_names(arrays), version), version))
    (place / "symbol.json").write_bytes(symbol_file(network, arrays, how))
    (place / "net.toml").write_text(network_toml(network))
    by_symbol = ImportOptions(symbol=Path("symbol.json"), name="old")
    asked = {"toml": ImportOptions(network), "shapes": ImportOptions(name="old")}.get(how, by_symbol)
    source = read_source_file(Path("old.params"), asked)[1]
    assert source.arrays.keys() == arrays.keys()
    assert all(np.array_equal(source.arrays[name], arrays[name]) for name in arrays)
    options = {"toml": ["--network", "net.toml"], "shapes": []}.get(how, ["--symbol", "symbol.json"])
    assert main(["import", "old.params", *options, "--out", "new.h5"]) == 0
    assert ("assumed" in capsys.readouterr().out) == (how == "shapes")
    weights = load_weights(Path("new.h5"))
    assert weights.input_scale == 1
    assert weights.stored_network() == network
    graph = build_graph(network, weights)
    images = random_images(network, 20)
    enlarged = graph.steps[0].layer.reference(images, {})[:, 0]
    labels = graph.forward(images, np.float64)[1]
    np.testing.assert_array_equal(labels, course_labels(network, arrays, enlarged))
    assert len(set(labels.tolist())) > 1


ANY = "input = [3, 28, 28]\npixel_scale = 1\n" + layers_toml(
    *("conv2d maps=4 kernel=5 padding=2 stride=2 bias=true", "relu", "avgpool window=3 stride=2 ceil=true", "flatten"),
    *("linear outputs=6 bias=false", "sigmoid", "linear outputs=3 bias=true"),
)


@pytest.mark.parametrize("flatten", [True, False])
def test_a_symbol_may_be_any_chain_of_layers(flatten: bool, place: Path) -> None:
    """It has colours, padding, strides and incomplete windows, but no softmax; FullyConnected flattens by itself."""
    network = parse_network(ANY, "old.toml")
    arrays = channels_first(network, biases=frozenset({"conv1", "fc2"}))
    (place / "old.params").write_bytes(params_file(mxnet_names(arrays)))
    found = symbol(network, arrays)
    if not flatten:
        at = next(at for at, node in enumerate(found["nodes"]) if node["op"] == "Flatten")
        before = found["nodes"][at]["inputs"][0]
        for node in found["nodes"]:
            node["inputs"] = [before if to[0] == at else to for to in node["inputs"]]
        found["nodes"][at] = {"op": "null", "name": "nothing", "inputs": []}
    (place / "symbol.json").write_text(json.dumps(found))
    assert main(["import", "old.params", "--symbol", "symbol.json", "--size", "28", "--out", "new.h5"]) == 0
    weights = load_weights(Path("new.h5"))
    assert weights.stored_network().canonical_toml == network.canonical_toml
    np.testing.assert_array_equal(weights.arrays["conv1"], arrays["conv1"].transpose(2, 3, 1, 0))


def test_arrays_of_other_names_are_found_by_shape(place: Path) -> None:
    network = course_network(*OLD[0])
    arrays = channels_first(network, biases=FULL)
    own = {"conv1": "new0", "conv2": "new1", "fc1": "fullyconnected0", "fc2": "fullyconnected1"}
    renamed = {
        name.replace(name[:-5] if name.endswith("_bias") else name, own[name.removesuffix("_bias")]): array
        for name, array in arrays.items()
    }
    (place / "old.params").write_bytes(params_file(shuffle_arrays(mxnet_names(renamed), 3)))
    found = read_source_file(Path("old.params"), ImportOptions(network))[1]
    assert found.origins["fc1_bias"] == "fullyconnected0_bias"
    assert all(np.array_equal(found.arrays[name], arrays[name]) for name in arrays)


def test_the_derived_image_size_leaves_no_row_unread(place: Path) -> None:
    """Sizes 48 and 49 give the same features; with 49, pooling leaves a row unread."""
    network = course_network(*OLD[0])
    arrays = channels_first(network, biases=FULL)
    (place / "old.params").write_bytes(params_file(mxnet_names(arrays)))
    for size in (None, 48, 49):
        found = read_source_file(Path("old.params"), ImportOptions(size=size))[1].network
        assert found.layers[0] == Resize("resize", size or 48, "course")
