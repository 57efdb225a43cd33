"""A weights file carries its network, its pixel scale and promises for that network alone."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.files.hdf5 import content_hash
from app.layers import Tanh
from app.network.definitions import FA19, K7, MLP
from app.network.graph import build
from app.network.toml import network_toml
from app.network.weights import Weights, load_weights, save_weights
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import random_graph
from tests.support.shell import user_error

FC1 = np.ones((4, 3), np.float32)


@pytest.mark.parametrize("text", [str, lambda value: np.bytes_(value.encode())], ids=["variable", "fixed"])
def test_attributes_as_h5py_writes_them(text: Callable[[str], Any], tmp_path: Path) -> None:
    """Text of variable length, as h5py writes a str, or of fixed length; numbers as NumPy scalars."""
    own = replace(MLP, name="own", pixel_scale=0.5)
    written: dict[str, Any] = {"definition": network_toml(own), "classes": '["Überzieher"]', "recipe": "by hand"}
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["fc1"] = FC1
        file.attrs.update({name: text(value) for name, value in written.items()})
        file.attrs.update({"input_scale": np.float32(0.25), "schema": np.int64(1)})
    weights = load_weights(tmp_path / "w.h5")
    assert (weights.network, weights.definition, weights.own_network()) == ("own", own, own)
    assert (weights.classes, weights.recipe, weights.input_scale) == (("Überzieher",), "by hand", 0.25)


@pytest.mark.parametrize("value", [b"x" * 70_000, b"\xff"], ids=["long", "no UTF-8"])
def test_bad_text_of_variable_length_is_refused(value: bytes, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["fc1"] = FC1
        file.attrs.create("recipe", value, dtype=h5py.string_dtype())
    told = user_error(lambda: load_weights(tmp_path / "w.h5"))
    assert re.search("larger than 64 KiB" if len(value) > 1 else "utf-8", told)


def test_a_file_is_of_one_network(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, definition=network_toml(FA19), network="k7")
    assert (
        user_error(lambda: load_weights(path))
        == f"{path}: attribute 'network' is k7, but 'definition' defines fa19; correct one of them"
    )
    unknown = load_weights(write_hdf5(path, {"fc1": FC1}, network="k8"))
    assert user_error(unknown.own_network).endswith("name the network's file with --network FILE.toml")


def test_the_pixel_scale_is_the_files_else_the_networks(tmp_path: Path) -> None:
    graph = random_graph(replace(MLP, pixel_scale=1.0))
    path = tmp_path / "w.h5"
    for given, scale in ((None, 1.0), (0.25, 0.25)):
        save_weights(path, graph.parameters, network=graph.network, input_scale=given)
        assert build(graph.network, load_weights(path)).input_scale == scale
    write_hdf5(path, graph.parameters, network="mlp")
    assert build(graph.network, load_weights(path)).input_scale == 1.0
    assert build(MLP, load_weights(path)).input_scale == 1 / 255


def test_a_promise_is_for_the_files_own_network() -> None:
    """Another network may take the same arrays: it promises nothing. The name does not matter."""
    tanh = replace(MLP, layers=tuple(Tanh("sigmoid") if x.kind == "sigmoid" else x for x in MLP.layers))
    arrays = random_graph(MLP).parameters
    for weights in (
        Weights(dict(arrays), "mlp", Path("w.h5"), expected_correct={10: 9}),
        Weights(dict(arrays), "own", Path("w.h5"), expected_correct={10: 9}, definition=replace(MLP, name="own")),
    ):
        assert weights.promised(MLP, 10) == weights.promised(replace(MLP, name="x"), 10) == 9
        assert weights.promised(MLP, 11) is None
        assert weights.promised(tanh, 10) is None and build(tanh, weights).parameters.keys() == arrays.keys()
    assert Weights(dict(arrays), "unknown", Path("w.h5"), expected_correct={10: 9}).promised(MLP, 10) is None


def test_weights_of_the_schema_before_are_read(tmp_path: Path) -> None:
    """They have a checksum and name their network, which must be listed."""
    about = {"schema": 2, "network": "k7", "input_scale": 0.5}
    about |= {"arrays_sha256": content_hash({"fc1": FC1}, json.dumps(about, sort_keys=True))}
    weights = load_weights(write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, **about))
    assert weights.vouched and weights.definition is None and weights.own_network() is K7
    write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, **(about | {"network": "mlp"}))
    assert "does not match its checksum" in user_error(lambda: load_weights(tmp_path / "w.h5"))
