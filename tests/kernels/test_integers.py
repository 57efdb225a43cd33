"""Test the int8 kernels of two convolutions, emulated on the CPU: the second convolution multiplies bytes."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from app.kernels.plain_problems import is_two_of_four
from app.network.definitions import LENET5
from app.network.graph import Graph, build_graph
from app.network.quantised import QuantisedFilters
from app.planning.matching import Choices, Node
from app.planning.plan import plan
from tests.support.kernel_grid import convolution_pair, row_of, typed
from tests.support.networks_for_tests import multiplied, random_images
from tests.support.on_processor import run_row, through
from tests.support.sparsity import shipped_lenet5

PROBLEM = typed(convolution_pair(), "int8")
ROW = row_of("conv_pair", "wgmma-int8")


def pack_parameters(arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    packing = ROW.launch_config(PROBLEM).packing
    assert packing is not None
    return packing.pack(arrays)


SPARSE = pytest.mark.parametrize("sparse", [False, True])


@cache
def shipped_graph(sparse: bool = False) -> tuple[Graph, QuantisedFilters]:
    graph = build_graph(LENET5, shipped_lenet5(sparse))
    assert graph.quantised is not None
    return graph, graph.quantised


def convolution_node(graph: Graph, sparse: bool = True) -> Node:
    """Return the plan's node for both convolutions. sparse: whether the plan may use kernels for sparse filters."""
    first, second = plan(graph, "sm_90a", Choices("int8", sparse=sparse)).nodes
    assert graph.quantised is not None
    name = "wgmma-sparse-int8" if sparse and is_two_of_four(graph.quantised.filters) else "wgmma-int8"
    assert (first.variant.name, second.problem.dtype) == (name, "float16")
    return first


@pytest.mark.parametrize("value", [0, 255])
def test_bytes_saturate_at_0_and_255(value: int) -> None:
    """Sums far beyond the range of bytes saturate instead of wrapping around."""
    image = np.full((1, 1, 28, 28), value, np.uint8)
    w1 = np.full((1, 5, 5, 32), 10.0, np.float32) * np.where(np.arange(32) % 2, -1, 1).astype(np.float32)
    w2 = np.where(np.arange(64) % 2, -1, 1).astype(np.float32) * np.ones((32, 5, 5, 64), np.float32)
    y = run_row(ROW, PROBLEM, image, [w1, None, w2, None])[0].reshape(64, 16)
    bright = float(value > 0) * 16 * 25  # of 16 maps' windows
    np.testing.assert_allclose(y, np.broadcast_to(np.where(np.arange(64) % 2, 0, bright)[:, None], y.shape), rtol=2e-3)


def test_shipped_filters_are_packed_unchanged() -> None:
    graph, quantised = shipped_graph()
    node = convolution_node(graph)
    assert node.scales is not None
    _, filters2, scales = pack_parameters(node.parameters)
    wanted = quantised.filters.transpose(2, 0, 1, 3).reshape(2, 16, 25, 8, 8).transpose(2, 0, 3, 4, 1)
    assert filters2 is not None and scales is not None
    np.testing.assert_array_equal(filters2.reshape(wanted.shape), wanted, strict=True)
    np.testing.assert_allclose(scales, node.scales * quantised.steps / 1020, rtol=1e-6)


@SPARSE
def test_features_of_the_shipped_weights(sparse: bool) -> None:
    """Features equal float64 layers' with activations rounded to bytes, save where float16 rounds to the next byte."""
    graph, quantised = shipped_graph(sparse)
    node, x = convolution_node(graph), random_images(LENET5, 3)
    parameters = {**graph.parameters, "conv2": quantised.filters * quantised.steps.astype(np.float64)}
    y = graph.input_of_step(3, x, np.float64) / quantised.limits[:, None, None]
    y = np.rint(np.clip(y, 0, 1) * 255) / 255
    for step in graph.steps[3:6]:
        y = step.layer.reference(y, parameters)
    assert node.scales is not None
    wanted = (y * node.scales[:, None, None]).reshape(3, -1)
    error = np.abs(through(node, x) - wanted) / wanted.max()
    assert error.max() < 0.01 and error.mean() < 2e-4


@pytest.mark.parametrize("factor", [1e-3, 30.0])
@SPARSE
def test_scaled_weights_and_limits_give_the_same_bytes(sparse: bool, factor: float) -> None:
    """Weights and activation limits scaled by one factor give the same bytes, by the sparse and the dense kernel."""
    graph, quantised = shipped_graph(sparse)
    other = multiplied(graph, conv1=factor)
    scaled = QuantisedFilters(
        quantised.layer, quantised.filters, quantised.limits * np.float32(factor), quantised.steps
    )
    x = random_images(LENET5, 2)
    other = Graph(**{**vars(other), "quantised": scaled})
    found, wanted = (through(convolution_node(g), x) for g in (other, graph))
    np.testing.assert_array_equal(found, through(convolution_node(other, sparse=False), x), strict=True)
    close = np.isclose(found, wanted, rtol=2e-3, atol=1e-3 * wanted.max())
    assert close.mean() > 0.999
