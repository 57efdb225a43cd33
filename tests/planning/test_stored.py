"""Weights as they are stored on the card: what float16 cannot hold is one clear error, where fp16 was asked for."""

import pytest

from app.errors import UserError
from app.kernels.problems import PairProblem
from app.network.definitions import LENET5, NETWORKS, Network
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import ODD, multiplied, random_graph

pytestmark = pytest.mark.filterwarnings("error")  # of NumPy, where a number overflows
FACTORS = pytest.mark.parametrize("factor", [1e9, 1e-9])


@FACTORS
@pytest.mark.parametrize("network", [*NETWORKS.values(), ODD], ids=lambda network: network.name)
def test_what_float16_cannot_hold_is_an_error_where_it_was_asked_for(network: Network, factor: float) -> None:
    """In any layer of any network. What was not asked for is not computed in float16."""
    graph = random_graph(network, bias=False)
    for arch, name in zip(["sm_75", "sm_80", "sm_90a", "sm_120"], graph.parameters, strict=False):
        changed = multiplied(graph, factor, name)
        with pytest.raises(UserError, match=f"^fp16 cannot hold the weights of {name}: .*; take --precision fp32$"):
            plan(changed, arch, Choices("fp16", fuse=False))
    plan(changed, arch, Choices("fp32"))
    plan(changed, arch, Choices("auto"))


@FACTORS
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_that_scale_weights_serve_them(arch: str, factor: float) -> None:
    graph = random_graph(LENET5, bias=False)
    for name in graph.parameters:
        nodes = plan(multiplied(graph, factor, name), arch, Choices("fp16")).nodes
        assert all(isinstance(node.problem, PairProblem) for node in nodes)
