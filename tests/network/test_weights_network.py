"""Test what a weights file says of its network, its pixel scale, its promises and its 8-bit filters."""

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
from app.network.definitions import FA19, K7, LENET5, MLP
from app.network.graph import build_graph
from app.network.quantised import QuantisedFilters
from app.network.toml import network_toml
from app.network.weights import Weights, load_weights, save_weights
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import random_graph, with_bytes
from tests.support.shell import user_error

FC1 = np.ones((4, 3), np.float32)


@pytest.mark.parametrize("text", [str, lambda value: np.bytes_(value.encode())], ids=["variable", "fixed"])
def test_attributes_written_by_h5py_are_read(text: Callable[[str], Any], tmp_path: Path) -> None:
    """Text has variable length, as h5py writes a str, or fixed length; numbers are NumPy scalars."""
    own = replace(MLP, name="own", pixel_scale=0.5)
    written: dict[str, Any] = {"definition": network_toml(own), "classes": '["Überzieher"]', "recipe": "by hand"}
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["fc1"] = FC1
        file.attrs.update({name: text(value) for name, value in written.items()})
        file.attrs.update({"input_scale": np.float32(0.25), "schema": np.int64(1)})
    weights = load_weights(tmp_path / "w.h5")
    assert (weights.network, weights.definition, weights.stored_network()) == ("own", own, own)
    assert (weights.classes, weights.recipe, weights.input_scale) == (("Überzieher",), "by hand", 0.25)


@pytest.mark.parametrize("value", [b"x" * 70_000, b"\xff"], ids=["long", "no UTF-8"])
def test_bad_text_of_variable_length_is_refused(value: bytes, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["fc1"] = FC1
        file.attrs.create("recipe", value, dtype=h5py.string_dtype())
    told = user_error(lambda: load_weights(tmp_path / "w.h5"))
    assert re.search("larger than 64 KiB" if len(value) > 1 else "utf-8", told)


def test_the_networks_name_and_definition_must_agree(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, definition=network_toml(FA19), network="k7")
    told = f"{path}: attribute 'network' is k7, but 'definition' defines fa19; correct one of them"
    assert user_error(lambda: load_weights(path)) == told
    unknown = load_weights(write_hdf5(path, {"fc1": FC1}, network="k8"))
    assert user_error(unknown.stored_network).endswith("name the network's file with --network FILE.toml")


def test_the_files_pixel_scale_replaces_the_networks(tmp_path: Path) -> None:
    graph = random_graph(replace(MLP, pixel_scale=1.0))
    path = tmp_path / "w.h5"
    for given, scale in ((None, 1.0), (0.25, 0.25)):
        save_weights(path, graph.parameters, network=graph.network, input_scale=given)
        assert build_graph(graph.network, load_weights(path)).input_scale == scale
    write_hdf5(path, graph.parameters, network="mlp")
    assert build_graph(graph.network, load_weights(path)).input_scale == 1.0
    assert build_graph(MLP, load_weights(path)).input_scale == 1 / 255


def test_a_promise_holds_for_the_files_network_only() -> None:
    """Another network may accept the same arrays, without the promise. The name does not matter."""
    tanh = replace(MLP, layers=tuple(Tanh("sigmoid") if x.kind == "sigmoid" else x for x in MLP.layers))
    arrays = random_graph(MLP).parameters
    for weights in (
        Weights(dict(arrays), "mlp", Path("w.h5"), expected_correct={10: 9}),
        Weights(dict(arrays), "own", Path("w.h5"), expected_correct={10: 9}, definition=replace(MLP, name="own")),
    ):
        assert [weights.promised_correct_count(one, 10) for one in (MLP, replace(MLP, name="x"))] == [9, 9]
        assert weights.promised_correct_count(MLP, 11) is weights.promised_correct_count(tanh, 10) is None
        assert build_graph(tanh, weights).parameters.keys() == arrays.keys()
    unknown = Weights(dict(arrays), "unknown", Path("w.h5"), expected_correct={10: 9})
    assert unknown.promised_correct_count(MLP, 10) is None


def test_weights_of_schema_2_are_read(tmp_path: Path) -> None:
    """Such files have a checksum and only the name of their network, which must be listed."""
    about = {"schema": 2, "network": "k7", "input_scale": 0.5}
    about |= {"arrays_sha256": content_hash({"fc1": FC1}, json.dumps(about, sort_keys=True))}
    weights = load_weights(write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, **about))
    assert weights.vouched and weights.definition is None and weights.stored_network() is K7
    write_hdf5(tmp_path / "w.h5", {"fc1": FC1}, **(about | {"network": "mlp"}))
    assert "does not match its checksum" in user_error(lambda: load_weights(tmp_path / "w.h5"))


# --- 8-bit filters


GRAPH = with_bytes(random_graph(LENET5, bias=False))
Arrays = dict[str, np.ndarray]


def quantised_filters() -> QuantisedFilters:
    assert GRAPH.quantised is not None
    return GRAPH.quantised


def test_quantised_filters_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    save_weights(path, GRAPH.parameters, network=LENET5, quantised=quantised_filters())
    found = load_weights(path)
    assert found.arrays.keys() == GRAPH.parameters.keys() and found.quantised is not None
    assert build_graph(LENET5, found).quantised is found.quantised and found.quantised.layer == "conv2"
    for name, array in quantised_filters().arrays.items():
        np.testing.assert_array_equal(found.quantised.arrays[name], array, strict=True)


def test_dequantised_parameters_give_the_same_sums() -> None:
    """The limits cancel; only the rounding of the filters remains."""
    parameters = quantised_filters().dequantised_parameters(GRAPH.parameters, "conv1")
    np.testing.assert_allclose(parameters["conv1"] * quantised_filters().limits, GRAPH.parameters["conv1"], rtol=1e-6)
    w2 = parameters["conv2"] / quantised_filters().limits[:, None]
    most = (quantised_filters().steps / quantised_filters().limits.min()).max()
    assert np.abs(w2 - GRAPH.parameters["conv2"]).max() < most
    assert parameters["fc1"] is GRAPH.parameters["fc1"]


def _drop(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def _put(**values: np.ndarray) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update(values)


INCOMPLETE = "its 8-bit integers are incomplete"
ONES = np.ones(32, np.float32)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_drop("conv2_int8"), INCOMPLETE),
        (_drop("conv2_int8_steps"), INCOMPLETE),
        (_drop("conv2"), INCOMPLETE),
        (_put(fc1_int8=np.zeros((1024, 128), np.int8)), INCOMPLETE),
        (_put(conv2_int8=np.zeros((5, 5, 32, 64), np.int16)), "conv2_int8 is no array of int8 of conv2's shape"),
        (_put(conv2_int8=np.full((5, 5, 32, 32), 127, np.int8)), "conv2_int8 is no array of int8 of conv2's shape"),
        (_put(conv2_int8=np.full((5, 5, 32, 64), 100, np.int8)), "outputs whose greatest filter is not 127"),
        (_put(conv2_int8=np.full((5, 5, 32, 64), -128, np.int8)), "outputs whose greatest filter is not 127"),
        (_put(conv2_int8_limits=0 * ONES), "conv2_int8_limits is no array of 32 positive float32"),
        (_put(conv2_int8_limits=np.nan * ONES), "conv2_int8_limits is no array of 32 positive float32"),
        (_put(conv2_int8_steps=ONES), "conv2_int8_steps is no array of 64 positive float32"),
    ],
)
def test_wrong_quantised_filters_are_refused(change: Callable[[Arrays], object], fault: str, tmp_path: Path) -> None:
    arrays = {**GRAPH.parameters, **quantised_filters().arrays}
    change(arrays)
    message = user_error(lambda: load_weights(write_hdf5(tmp_path / "w.h5", arrays)))
    assert fault in message and message.endswith("run python -m data_tools quantise")
