"""Random networks all plan, in every precision; by default in fp32x, layer by layer on tensor cores where that pays.

A failure names its seed; ``python -m tests.support.random_networks --seed N`` prints the network.
"""

import pytest

from app.kernels.problems import ConvPairProblem, ConvProblem
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.planning.test_plan_choices import runs_in_float32
from tests.support.random_networks import uncentred_network
from tests.support.random_networks_checked import graph_of

SEEDS = range(200)


@pytest.mark.grid
@pytest.mark.parametrize("seed", SEEDS)
def test_every_precision_serves_every_network(seed: int) -> None:
    graph = graph_of(uncentred_network(seed))
    for arch in ("sm_80", "sm_90a"):
        for precision in ("auto", "fp32", "tf32", "fp16"):
            planned = plan(graph, arch, Choices(precision))
            if precision != "auto":
                continue
            assert planned.arithmetic == "float16x2"
            for node in planned.nodes:
                slow = runs_in_float32(node.problem, "fp32x") and node.variant.name != "warpgroup"
                assert not node.parameters or node.problem.dtype == ("float32" if slow else "float16x2"), node.name


def test_the_networks_are_what_people_bring() -> None:
    """One channel or three; up to 128 maps, kernels of 11, five convolutions and four products; pairs and odd ones."""
    graphs = [graph_of(uncentred_network(seed)) for seed in SEEDS]
    kinds = [[layer.operation for layer in graph.network.layers] for graph in graphs]
    assert {found.count("conv") for found in kinds} == {0, 1, 2, 3, 4, 5}
    assert {found.count("gemm") for found in kinds} == {1, 2, 3, 4}
    nodes = [node for graph in graphs[:60] for node in plan(graph, "sm_90a", Choices("auto")).nodes]
    convolutions = [node.problem for node in nodes if isinstance(node.problem, ConvProblem)]
    assert {1, 3} < {problem.channels for problem in convolutions}
    assert max(problem.maps for problem in convolutions) > 64 and max(p.kernel for p in convolutions) > 8
    assert any(isinstance(node.problem, ConvPairProblem) for node in nodes)
    names = {(node.variant.name, node.features is not None) for node in nodes}
    assert {("tensor-core", True), ("tensor-core", False), ("warpgroup", False), ("wgmma-any", False)} <= names
