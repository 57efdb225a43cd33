"""Test lenet5 with layers of any scale on a GPU: every kernel of two layers is as exact as a plain implementation."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import BY_NAME
from app.kernels.problems import PairProblem
from app.kernels.registry import variants
from app.network.definitions import LENET5
from app.network.graph import Graph
from app.network.verdicts import top_two_margins
from app.planning.plan import ExecutionPlan, plan
from data_tools.fashion_mnist import open_split
from tests.engine.test_gpu_engine import make_engine
from tests.support.kernel_cases import architecture
from tests.support.kernel_device import cases_of, compile_all
from tests.support.networks_for_tests import rounded
from tests.support.requests import named_choices
from tests.support.scaled_networks import biased, errors, images, plain_errors, scaled, shipped, unbiased, unit_scaled

pytestmark = pytest.mark.gpu
BOTH = pytest.mark.parametrize("precision", ["fp32x", "fp16"])
COUNT = 32  # of each kind of image
NEAR_TIE = 1e-4  # of scores around 10
SMALL, TINY = (1e-4, 1e-4, 1e4, 1e4), (1e-6, 1e-6, 1e6, 1e6)
GRAPHS = {
    "1e-4": lambda: scaled(shipped(), SMALL),
    "1e-6": lambda: scaled(shipped(), TINY),
    "1e8": lambda: scaled(biased(), (1e8, 1e8, 1e-8, 1e-8)),
    "drawn": lambda: scaled(unbiased(), _random_factors(0)),
    "drawn, biased": lambda: scaled(biased(), _random_factors(1)),
    "each map": lambda: unit_scaled(unbiased(), np.random.default_rng(2), 3),
    "each map, biased": lambda: unit_scaled(biased(), np.random.default_rng(3), 3),
}


@cache
def exact_graph() -> Graph:
    """Return lenet5 with random weights that float16 represents exactly."""
    return rounded(unbiased())


# Powers of two keep such weights exact.
EXACT = {
    "exact": lambda: exact_graph(),
    "exact, 2**-14": lambda: scaled(exact_graph(), (2.0**-14, 2.0**-14, 2.0**14, 2.0**14)),
    "exact, 2**20": lambda: scaled(exact_graph(), (2.0**20, 2.0**20, 2.0**-20, 2.0**-20)),
}
BIASED = {"1e8", "drawn, biased", "each map, biased"}
USUAL = {"1e-4": shipped, "1e-6": shipped, "1e8": biased, "drawn": unbiased, "each map": unbiased}
USUAL |= dict.fromkeys(EXACT, exact_graph)
# The kernels of lenet5's convolutions, each with every kernel of two products.
ROWS = {row.name: row for row in variants("conv_pair") if not row.name.endswith("-any")}
PAIRS = [
    {"conv_pair": convolutions, "gemm_pair": products.name}
    for convolutions in ROWS
    for products in variants("gemm_pair")
]
CASES = [
    pytest.param(weights, kernels, precision, id=f"{weights}-{'-'.join(kernels.values())}-{precision}")
    for precision in ("fp32x", "fp16")
    for kernels in PAIRS
    if BY_NAME[precision].dtype in ROWS[kernels["conv_pair"]].dtypes
    for weights in (EXACT if kernels["conv_pair"] == "wgmma-exact" else {**GRAPHS, **EXACT})
    if kernels["conv_pair"] == "mma" or weights not in BIASED  # the others add no bias
]


def _random_factors(seed: int) -> tuple[float, ...]:
    """Return four random factors from 1e-8 to 1e8 whose product is 1."""
    powers = np.random.default_rng(seed).uniform(-4, 4, 4)
    return tuple(10 ** (powers - powers.mean()))


def plan_pairs(graph: Graph, precision: str, kernels: dict[str, str]) -> ExecutionPlan | None:
    """Return the plan with these kernels of two layers, or None if they do not support the network on this GPU."""
    if architecture() == "sm_75":
        return None
    try:
        found = plan(graph, architecture(), named_choices(precision, kernels=kernels))
    except UserError as error:
        assert "does not support" in str(error) and "lose numbers" not in str(error)
        return None
    assert all(isinstance(node.problem, PairProblem) for node in found.nodes)
    return found


@cache
def cached_plain_errors(network: Callable[[], Graph], seed: int, precision: str) -> np.ndarray:
    return plain_errors(network(), images(COUNT, seed), precision)


@pytest.fixture(scope="module", autouse=True)
def compile_kernels() -> None:
    """Compile all kernels of this file's tests on all CPU cores."""
    plans = [plan_pairs(g(), p, k) for g in (biased, unbiased, exact_graph) for p in ("fp32x", "fp16") for k in PAIRS]
    compile_all(cases_of(filter(None, plans)))


@pytest.mark.parametrize(("weights", "kernels", "precision"), CASES)
@pytest.mark.parametrize("in_chunks", [False, True])
def test_scaled_layers_are_as_exact_as_others(
    weights: str, kernels: dict[str, str], precision: str, in_chunks: bool
) -> None:
    """Each run has other images in the same page-locked array, which is copied in chunks or read over the bus."""
    from app.cuda.memory import pinned_array

    graph = {**GRAPHS, **EXACT}[weights]()
    if plan_pairs(graph, precision, kernels) is None:
        pytest.skip(f"{kernels} do not serve it in {precision} on {architecture()}")
    usual = USUAL.get(weights, biased)
    given = pinned_array((2 * COUNT, *LENET5.input_shape), np.uint8)
    options: dict[str, Any] = {"kernels": kernels, "always_in_chunks": in_chunks}
    with make_engine(graph, chunk=77, streams=3, precision=precision, **options) as running:
        outputs = running.allocate_outputs(len(given), logits=True)
        assert outputs.logits is not None
        for seed in (0, 1, 0, 1):
            given[:] = images(COUNT, seed)
            outputs.labels.fill(255)
            outputs.logits.fill(np.nan)
            running.run(given, outputs)
            wanted = graph.reference(given)
            found, limits = errors(outputs.logits, wanted), cached_plain_errors(usual, seed, precision)
            assert (found <= 2 * limits).all(), f"{found}, a plain implementation's {limits}"
            np.testing.assert_array_equal(outputs.labels, outputs.logits.argmax(axis=1))
            clear = np.nonzero(top_two_margins(wanted) > 4 * limits.max() * np.abs(wanted).max())[0]
            np.testing.assert_array_equal(outputs.labels[clear], wanted.argmax(axis=1)[clear])


@BOTH
@pytest.mark.fashion_mnist
@pytest.mark.parametrize("factors", [SMALL, TINY], ids=["1e-4", "1e-6"])
def test_shipped_weights_scaled_keep_their_labels(factors: tuple[float, ...], precision: str) -> None:
    """fp32x: labels equal the float64 reference's except at near-ties. fp16: 99.9 % equal those of unscaled weights."""
    found = []
    given = np.ascontiguousarray(open_split("test").images[:, None])
    for graph in (shipped(), scaled(shipped(), factors)):
        if plan_pairs(graph, precision, {}) is None:
            pytest.skip(f"{architecture()} has no kernels that take two layers at once")
        with make_engine(graph, chunk=1000, precision=precision) as running:
            outputs = running.allocate_outputs(len(given))
            running.run(given, outputs)
            found.append(outputs.labels.copy())
    unscaled, labels = found
    wanted = shipped().reference(given)
    if precision == "fp32x":
        clear = top_two_margins(wanted) >= NEAR_TIE
        assert clear.mean() > 0.999
        np.testing.assert_array_equal(labels[clear], wanted.argmax(axis=1)[clear])
    else:
        assert (labels != unscaled).mean() <= 1e-3
