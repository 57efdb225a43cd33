"""Test 8-bit integers in weights files: what is read back, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.network.definitions import LENET5
from app.network.graph import build
from app.network.quantised import Quantised
from app.network.weights import load_weights, save_weights
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import random_graph, with_bytes
from tests.support.shell import user_error

GRAPH = with_bytes(random_graph(LENET5, bias=False))
Arrays = dict[str, np.ndarray]


def quantised() -> Quantised:
    assert GRAPH.quantised is not None
    return GRAPH.quantised


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    save_weights(path, GRAPH.parameters, network=LENET5, quantised=quantised())
    found = load_weights(path)
    assert found.arrays.keys() == GRAPH.parameters.keys() and found.quantised is not None
    assert build(LENET5, found).quantised is found.quantised and found.quantised.layer == "conv2"
    for name, array in quantised().arrays.items():
        np.testing.assert_array_equal(found.quantised.arrays[name], array, strict=True)


def test_weights_for_bytes_give_the_same_sums() -> None:
    """Whatever the limits, up to what the filters are rounded by."""
    parameters = quantised().on_unit_bytes(GRAPH.parameters, "conv1")
    np.testing.assert_allclose(parameters["conv1"] * quantised().limits, GRAPH.parameters["conv1"], rtol=1e-6)
    w2 = parameters["conv2"] / quantised().limits[:, None]
    assert np.abs(w2 - GRAPH.parameters["conv2"]).max() < (quantised().steps / quantised().limits.min()).max()
    assert parameters["fc1"] is GRAPH.parameters["fc1"]


def _without(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def _with(**values: np.ndarray) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update(values)


INCOMPLETE = "its 8-bit integers are incomplete"
ONES = np.ones(32, np.float32)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_without("conv2_int8"), INCOMPLETE),
        (_without("conv2_int8_steps"), INCOMPLETE),
        (_without("conv2"), INCOMPLETE),
        (_with(fc1_int8=np.zeros((1024, 128), np.int8)), INCOMPLETE),
        (_with(conv2_int8=np.zeros((5, 5, 32, 64), np.int16)), "conv2_int8 is no array of int8 of conv2's shape"),
        (_with(conv2_int8=np.full((5, 5, 32, 32), 127, np.int8)), "conv2_int8 is no array of int8 of conv2's shape"),
        (_with(conv2_int8=np.full((5, 5, 32, 64), 100, np.int8)), "outputs whose greatest filter is not 127"),
        (_with(conv2_int8=np.full((5, 5, 32, 64), -128, np.int8)), "outputs whose greatest filter is not 127"),
        (_with(conv2_int8_limits=0 * ONES), "conv2_int8_limits is no array of 32 positive float32"),
        (_with(conv2_int8_limits=np.nan * ONES), "conv2_int8_limits is no array of 32 positive float32"),
        (_with(conv2_int8_steps=ONES), "conv2_int8_steps is no array of 64 positive float32"),
    ],
)
def test_faults(change: Callable[[Arrays], object], fault: str, tmp_path: Path) -> None:
    arrays = {**GRAPH.parameters, **quantised().arrays}
    change(arrays)
    message = user_error(lambda: load_weights(write_hdf5(tmp_path / "w.h5", arrays)))
    assert fault in message and message.endswith("run python -m data_tools quantise")
