"""Test the kernels that scale their numbers for float16, emulated on the CPU, on networks of other sizes than lenet5's.

Scores must be as exact as in float32, whatever the layers' scales and activations, or plans must choose other kernels.
"""

from functools import cache

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.problems import ArgmaxProblem, ConvPairProblem, LinearPairProblem
from app.layers import ACTIVATIONS, Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Resize
from app.network.definitions import Network
from app.network.graph import Graph
from app.planning.matching import Choices, Node
from app.planning.plan import plan
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import multiplied, random_graph, rounded
from tests.support.on_processor import through
from tests.support.scaled_networks import errors, plain_errors, scaled

Factors = tuple[float, float, float, float]
FUNCTIONS = pytest.mark.parametrize("function", [*ACTIVATIONS])
ARCHES = ("sm_90a", "sm_80")
CARDS = pytest.mark.parametrize("arch", ARCHES)
BOTH = pytest.mark.parametrize("precision", ["fp32x", "fp16"])
SCALED: list[Factors] = [
    (1, 1, 1, 1),
    (1e-4, 1e-4, 1e4, 1e4),
    (1e4, 1e4, 1e-4, 1e-4),
    (1e-8, 1e-8, 1e8, 1e8),
    (1e8, 1e-8, 1e8, 1e-8),
    (1, 1e-8, 1e8, 1),
]


ENLARGING = ("tanh",)  # the network with this activation enlarges its images first


def make_network(function: str) -> Network:
    """Return a network with padding, both poolings, windows over the border, odd map counts and this activation."""
    enlarging = function in ENLARGING

    def activation(name: str) -> Layer:
        return ACTIVATIONS[function](name)

    layers = [
        *([Resize("resize", 34)] if enlarging else []),
        *(Conv2d("conv1", 5, 5, padding=2), activation("one"), AvgPool("pool1", 2)),
        *(Conv2d("conv2", 16, 3, stride=1 + enlarging), activation("two"), MaxPool("pool2", 3, ceil=True)),
        *(Flatten("flatten"), Linear("fc1", 40), activation("three"), Linear("fc2", 10), Argmax("argmax")),
    ]
    return Network("other", "for tests", (1, 28, 28), tuple(layers))


@cache
def make_graph(function: str, exact: bool = False) -> Graph:
    graph = random_graph(make_network(function))
    return rounded(graph) if exact else graph


@cache
def make_images() -> np.ndarray:
    """Return eight bright and eight dark images, (16, 1, 28, 28) uint8: enough for comparable greatest errors."""
    bright = np.random.default_rng(1).integers(0, 256, (8, 1, 28, 28)).astype(np.uint8)
    return np.concatenate([bright, bright // 64])


def nodes_before_argmax(graph: Graph, arch: str, precision: str) -> list[Node]:
    return [n for n in plan(graph, arch, Choices(precision)).nodes if not isinstance(n.problem, ArgmaxProblem)]


def compute_scores(nodes: list[Node]) -> np.ndarray:
    x = make_images()
    for node in nodes:
        x = through(node, x)
    return x.astype(np.float64)


def check_errors(graph: Graph, scores: np.ndarray, precision: str) -> None:
    """Assert that errors of scores are at most twice those of a plain implementation in that precision."""
    found, limits = errors(scores, graph.reference(make_images())), plain_errors(graph, make_images(), precision)
    assert (found <= 2 * limits).all(), f"{found}, a plain implementation's {limits}"


@pytest.mark.grid
@pytest.mark.parametrize("exact", [False, True])
@FUNCTIONS
@BOTH
@CARDS
def test_networks_of_other_sizes_are_exact(arch: str, precision: str, function: str, exact: bool) -> None:
    graph = make_graph(function, exact)
    convolutions, product, *_ = nodes = nodes_before_argmax(graph, arch, precision)
    assert convolutions.variant.name == "mma-any" and isinstance(convolutions.problem, ConvPairProblem)
    assert convolutions.problem.exact == (exact and precision == "fp32x")
    assert (convolutions.problem.resize is not None) == (function in ENLARGING)
    if arch == "sm_90a":
        assert product.variant.name == "wgmma-any" and isinstance(product.problem, LinearPairProblem)
        assert product.problem.exact == (exact and precision == "fp32x")
    check_errors(graph, compute_scores(nodes), precision)


@pytest.mark.grid
@pytest.mark.parametrize(("factors", "arch"), [(factors, ARCHES[at % 2]) for at, factors in enumerate(SCALED)])
@FUNCTIONS
def test_layers_of_any_scale_are_as_exact_as_in_float32(arch: str, function: str, factors: Factors) -> None:
    graph = scaled(make_graph(function), factors)
    nodes = nodes_before_argmax(graph, arch, "fp32x")
    assert nodes[0].variant.name == "mma-any"
    check_errors(graph, compute_scores(nodes), "fp32x")


def test_features_too_small_for_float16_are_split_into_tfloat32() -> None:
    """Results of tanh cannot be scaled: a product that reads results near 1e-8 must not split them into float16."""
    graph = multiplied(make_graph("tanh"), conv2=1e-8, conv2_bias=1e-8)
    nodes = nodes_before_argmax(graph, "sm_90a", "fp32x")
    assert [node.variant.name for node in nodes] == ["mma-any", "tensor-core", "tensor-core"]
    assert {node.problem.dtype for node in nodes} == {"float16x2"} and nodes[0].scales is None
    check_errors(graph, compute_scores(nodes), "fp32x")


def test_features_of_a_sigmoid_may_all_be_small() -> None:
    """Biases of about -14 keep all results of the sigmoid far below its limit of 1; scores must still be exact."""
    graph = multiplied(make_graph("sigmoid"), conv2=1.0, fc1=1e6)
    graph.parameters["conv2_bias"] -= np.float32(14)
    check_errors(graph, compute_scores(nodes_before_argmax(graph, "sm_90a", "fp32x")), "fp32x")


@pytest.mark.parametrize(
    ("function", "factor", "arch"), [("relu", 1.0, "sm_90a"), ("relu", 1e12, "sm_80"), ("tanh", 1.0, "sm_80")]
)
def test_chains_of_single_layers_are_as_exact_as_float32(arch: str, function: str, factor: float) -> None:
    """Bounds of one kernel's results hold, so the next kernel may split its inputs, whatever the layers' scales."""
    layers: list[Layer] = [Conv2d("conv1", 16, 5), ACTIVATIONS[function]("one")]
    layers += [MaxPool("pool1", 3), Flatten("flatten")]
    for at, outputs in enumerate((96, 64, 32, 10), 1):
        layers += [Linear(f"fc{at}", outputs), ACTIVATIONS[function](f"after{at}")]
    chain = Network("chain", "for tests", (1, 28, 28), (*layers[:-1], Argmax("argmax")))
    graph = multiplied(random_graph(chain), fc1=factor, fc1_bias=factor, fc2=1 / factor)
    nodes = nodes_before_argmax(graph, arch, "fp32x")
    assert {node.problem.dtype for node in nodes[1:]} == {"float16x2"} and all(node.features for node in nodes[:-1])
    assert isinstance(nodes[-1].problem, LinearPairProblem) == (function == "relu" or arch == "sm_90a")
    x: np.ndarray = make_images()
    for node in nodes:
        x = through(node, x)
        if node.features is not None:
            greatest = np.abs(x).reshape(len(x), len(node.features.bounds), -1).max(axis=(0, 2))
            assert (greatest <= node.features.bounds * (1 + 1e-6)).all()
    check_errors(graph, x.astype(np.float64), "fp32x")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["conv1", "conv2", "fc1"])
def test_layers_with_nan_or_infinite_weights_are_not_split(name: str, value: float) -> None:
    graph = multiplied(make_graph("relu"))  # a copy
    graph.parameters[name].flat[-1] = value
    nodes = [node for node in plan(graph, "sm_90a", Choices("fp32x")).nodes if node.parameters]
    types = {node.head.name: node.problem.dtype for node in nodes}
    if name != "fc1":
        types.pop("conv1" if name == "conv2" else "conv2")  # may split alone, if that pays
    assert {layer for layer, dtype in types.items() if dtype == "float32"} == {name}


@BOTH
def test_a_named_kernel_of_one_product_is_used_or_the_reason_given(precision: str) -> None:
    warpgroup = row_of("gemm", "warpgroup")
    graph, choices = make_graph("relu"), Choices(precision, kernels={"fc1": warpgroup})
    assert warpgroup in [node.variant for node in plan(graph, "sm_90a", choices).nodes]
    if precision == "fp32x":
        alone = Choices(precision, kernels={"fc1": warpgroup, "conv": row_of("conv", "direct")})
        with pytest.raises(UserError, match="warpgroup in fp32x it reads only bytes, and numbers"):
            plan(graph, "sm_90a", alone)
        lost = multiplied(graph)
        lost.parameters["fc1"].flat[-1] = np.nan
        with pytest.raises(UserError, match="warpgroup with these weights it would lose numbers"):
            plan(lost, "sm_90a", choices)
