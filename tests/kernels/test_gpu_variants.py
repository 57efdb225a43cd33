"""Test whole networks with each kernel by name: streams, chunks and fusion do not change the results."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import ROWS
from app.kernels.registry import variants
from app.kernels.variant import ConstantCopy, Variant
from app.network.definitions import FA19, LENET5, MINIDNN86, MLP, Network
from app.network.graph import Graph
from app.planning.plan import plan
from tests.engine.test_gpu_engine import classify
from tests.support.kernel_cases import OWN_ORDER, architecture
from tests.support.kernel_device import bits, cases_of, compile_all
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import (
    ODD,
    SMOOTH,
    TEST_NETWORKS,
    has_long_sums,
    random_graph,
    random_images,
    score_scale,
)
from tests.support.requests import named_choices

pytestmark = pytest.mark.gpu
IMAGES = 31
NETWORKS = {"conv": (LENET5, ODD, SMOOTH, MINIDNN86), "gemm": (LENET5, MLP, SMOOTH), "pool": (LENET5, ODD)}
# Networks for rows that do not support all those above: warpgroup kernels read only activations, in multiples of eight
# inputs and in fp32x scaled by the kernel before; toom-cook supports stride 1 only; the networks' weights are dense.
SERVED = {
    ("gemm", "warpgroup"): (LENET5, FA19, MINIDNN86),
    ("conv", "warpgroup"): (LENET5,),
    ("conv", "warpgroup-sparse"): (),
    ("conv", "toom-cook"): (LENET5, SMOOTH, MINIDNN86),
}
PLAINEST = {"conv": "direct", "gemm": "naive", "pool": "direct"}
# Relative to the scores' magnitude: errors of rounded operands grow from layer to layer.
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "fp32x": 1e-5, "tf32": 0.01, "fp16": 0.05}
graph_of = cache(random_graph)


def _run_parameters() -> list[Any]:
    """Return parameters (network, row, precision): each row, in each of its types, on a few networks."""
    return [
        pytest.param(network, row, precision.name, id=f"{row.operation}-{row.name}-{precision.name}-{network.name}")
        for operation, networks in NETWORKS.items()
        for row in variants(operation)
        for precision in ROWS
        if (precision.stored if operation == "pool" else precision.dtype) in row.dtypes
        and precision.name in TOLERANCE
        and (operation != "pool" or precision.name not in ("tf32", "fp32x"))  # which store activations as fp32 does
        for network in SERVED.get((operation, row.name), networks)
    ]


def plan_options(row: Variant, precision: str) -> dict[str, Any]:
    """Return plan options that request the row; pooling rows need fusion off, because a fused pooling has no kernel."""
    layer = "conv2" if (row.operation, row.name) == ("conv", "warpgroup") else row.operation
    return {"kernels": {layer: row.name}, "precision": precision, "fuse": row.operation != "pool"}


@pytest.fixture(scope="module", autouse=True)
def compile_kernels(request: pytest.FixtureRequest) -> None:
    """Compile all kernels of the selected tests on all CPU cores."""
    wanted: list[tuple[Graph, dict[str, Any]]] = []
    for item in request.session.items:
        values = item.callspec.params if hasattr(item, "callspec") else {}
        if {"network", "row", "precision"} <= set(values):
            graph, row = graph_of(values["network"]), values["row"]
            wanted += [(graph, plan_options(row, values["precision"])), (graph, _plainest_options(row.operation))]
    compile_all(cases_of(plan(graph, architecture(), named_choices(**chosen)) for graph, chosen in wanted))


def _plainest_options(operation: str) -> dict[str, Any]:
    return plan_options(row_of(operation, PLAINEST[operation]), "fp32")


@cache
def _classify_by_plainest(network: Network, operation: str) -> tuple[np.ndarray, np.ndarray]:
    return classify(graph_of(network), random_images(network, IMAGES), chunk=IMAGES, **_plainest_options(operation))


@pytest.mark.parametrize(("network", "row", "precision"), _run_parameters())
def test_whole_network(network: Network, row: Variant, precision: str) -> None:
    """Results are right, and equal in one chunk and in chunks on four streams with separate constant memory."""
    graph, images, chosen = graph_of(network), random_images(network, IMAGES), plan_options(row, precision)
    try:
        labels, scores = classify(graph, images, chunk=3, streams=4, **chosen)
    except UserError as missing:
        if not row.needs_cublas:
            raise
        pytest.skip(str(missing))
    expected = graph.reference(images)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE[precision] * score_scale(graph, expected))
    np.testing.assert_array_equal(labels, scores.argmax(axis=1))
    if row.name != "cublas":  # which may choose its algorithm by the size
        whole_labels, whole_scores = classify(graph, images, chunk=IMAGES, streams=1, **chosen)
        np.testing.assert_array_equal(bits(scores), bits(whole_scores))
        np.testing.assert_array_equal(labels, whole_labels)
    if precision == "fp32" and (row.operation, row.name) not in OWN_ORDER:
        plain_labels, plain_scores = _classify_by_plainest(network, row.operation)
        np.testing.assert_array_equal(bits(scores), bits(plain_scores))
        np.testing.assert_array_equal(labels, plain_labels)


@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_fused_and_separate_layers_agree_to_the_bit(network: Network) -> None:
    """Fused and separate layers agree in float32, on kernels that auto chooses and on the plainest.

    Networks with long sums keep auto's matrix product: a kernel requested by name does not cut sums into parts.
    """
    graph, images = graph_of(network), random_images(network, IMAGES)
    fused_labels, fused = classify(graph, images, chunk=10)
    plain = {"conv": "direct", "pool": "direct"} | ({} if has_long_sums(graph) else {"gemm": "naive"})
    for kernels in ({}, plain, {"pool": "shared"}):
        labels, scores = classify(graph, images, chunk=10, fuse=False, kernels=kernels)
        np.testing.assert_array_equal(bits(scores), bits(fused))
        np.testing.assert_array_equal(labels, fused_labels)


def test_networks_here_need_slices_of_constant_memory() -> None:
    """Only several slices make ``test_whole_network`` check that streams do not overwrite each other's slices."""
    for name in ("constant", "shared-constant", "specialised", "unrolled"):
        found = plan(graph_of(LENET5), architecture(), named_choices(kernels={"conv": name})).nodes
        copies = [
            action
            for node in found
            for action in node.variant.launch_config(node.problem, node.settings).actions
            if isinstance(action, ConstantCopy)
        ]
        assert len(copies) > 2, name
