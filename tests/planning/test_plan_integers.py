"""Plans in int8: what computes, and the one line where nothing can. Without a GPU."""

from dataclasses import replace

import numpy as np
import pytest

from app.kernels.problems import ConvPairProblem, LinearPairProblem
from app.network.definitions import FA19, LENET5, MLP
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import notices, plan
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import random_graph, with_bytes
from tests.support.shell import user_error

LOSS = "conv2 in 8-bit integers: coarser than fp16"


def lenet5(bias: bool = False) -> Graph:
    return with_bytes(random_graph(LENET5, bias=bias))


def test_convolutions_multiply_bytes_and_products_float16() -> None:
    graph, choices = lenet5(), Choices("int8")
    planned = plan(graph, "sm_90a", choices)
    convolutions, products = planned.nodes
    assert isinstance(convolutions.problem, ConvPairProblem) and isinstance(products.problem, LinearPairProblem)
    assert (convolutions.variant.name, convolutions.problem.dtype, planned.arithmetic) == ("wgmma-int8", "int8", "int8")
    assert (products.variant.name, products.problem.dtype) == ("wgmma", "float16")
    assert any(LOSS in notice for notice in notices(planned, choices))
    assert graph.quantised is not None and convolutions.scales is not None
    filters = convolutions.parameters[2]
    assert filters is not None
    wanted = graph.quantised.filters * graph.quantised.steps * convolutions.scales
    np.testing.assert_allclose(filters.reshape(32, 5, 5, 64), wanted.transpose(2, 0, 1, 3), rtol=1e-6)


def test_nothing_else_reads_the_8_bit_filters() -> None:
    graph = lenet5()
    without = replace(graph, quantised=None)
    for precision in ("auto", "fp16", "fp32"):
        both = (plan(one, "sm_90a", Choices(precision)).nodes for one in (graph, without))
        for ours, other in zip(*both, strict=True):
            assert (ours.variant, ours.problem) == (other.variant, other.problem)
            for a, b in zip(ours.parameters, other.parameters, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("graph", "arch", "choices", "reason"),
    [
        (random_graph(LENET5, bias=False), "sm_90a", {}, "the weights have no 8-bit filters: run python -m data_tools"),
        (lenet5(), "sm_80", {}, "wgmma-int8 needs sm_90 or later, this is sm_80"),
        (lenet5(), "sm_100", {}, "wgmma-int8 needs sm_90 itself, this is sm_100"),
        (lenet5(bias=True), "sm_90a", {}, "wgmma-int8 adds no bias"),
        (lenet5(), "sm_90a", {"fuse": False}, "it takes two convolutions in a row, fused"),
        (lenet5(), "sm_90a", {"kernels": {"conv": row_of("conv", "direct")}}, "with no kernel named for either"),
        (random_graph(FA19), "sm_90a", {}, "no kernel serves network fa19: wgmma-int8 "),
        (random_graph(MLP), "sm_90a", {}, "no kernel serves network mlp: it takes two convolutions"),
    ],
)
def test_why_not(graph: Graph, arch: str, choices: dict[str, object], reason: str) -> None:
    message = user_error(lambda: plan(graph, arch, Choices("int8", **choices)))  # type: ignore[arg-type]
    assert message.startswith("--precision int8: ") and reason in message and message.endswith("use --precision fp16")


def test_a_named_kernel_gives_the_reason() -> None:
    graph = replace(lenet5(), quantised=None)
    named = Choices("int8", kernels={"conv": None, "conv_pair": row_of("conv_pair", "wgmma-int8")})
    message = user_error(lambda: plan(graph, "sm_90a", named))
    assert message.startswith("kernel wgmma-int8 does not support conv1+conv2: the weights have no 8-bit filters: run")


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_limits_beyond_all_activations_are_refused(factor: float) -> None:
    """Limits that are not these weights': float16 could not hold the filters of conv1, or all bytes would be 0."""
    graph = lenet5()
    assert graph.quantised is not None
    other = replace(graph, quantised=replace(graph.quantised, limits=graph.quantised.limits * np.float32(factor)))
    message = user_error(lambda: plan(other, "sm_90a", Choices("int8")))
    assert "with these weights it would lose numbers" in message
