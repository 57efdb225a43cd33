"""Test lenet5 with layers of any scale on kernels of two layers, emulated on the CPU: scores as exact as in float32.

Factors whose product is 1 change neither scores nor float32's errors. Beyond float16, plans must choose other kernels.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from itertools import product

import numpy as np
import pytest

from app.base.precision import BY_DTYPE
from app.kernels.problems import ConvPairProblem, LinearPairProblem
from app.kernels.registry import variants
from app.kernels.scaling import LARGEST, LARGEST_BIAS1, balance_products, split_tf32
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.kernel_device import device_parameters
from tests.support.kernel_grid import convolution_pair, product_pair, row_of, typed
from tests.support.kernel_oracle import layers_of, operands, run
from tests.support.networks_for_tests import multiplied, rounded, with_bytes
from tests.support.on_processor import run_row, through
from tests.support.scaled_networks import (
    biased,
    errors,
    images,
    plain_errors,
    random_network,
    scaled,
    shipped,
    unbiased,
    unit_scaled,
)
from tests.support.shell import user_error
from tests.support.sparsity import with_sparse_conv2

Factors = tuple[float, float, float, float]
ARCHES, PRECISIONS = ("sm_80", "sm_90a"), ("fp32x", "fp16")  # mma; wgmma, where that serves
CARDS = pytest.mark.parametrize("arch", ARCHES)
BOTH = pytest.mark.parametrize("precision", PRECISIONS)
SCALED: list[Factors] = [
    (1e-4, 1e-4, 1e4, 1e4),
    (1e-6, 1e-6, 1e6, 1e6),
    (1e8, 1e8, 1e-8, 1e-8),
    (1e8, 1e-8, 1e8, 1e-8),
    (1e8, 1e8, 1e8, 1),
    (1, 1e-8, 1, 1),
]
# Factors that bring some layer beyond float16's range, whatever powers of two scale it.
BEYOND: list[Factors] = [
    (1e-8, 1e-8, 1e-8, 1e-8),
    (1e12, 1e12, 1e12, 1),
    (1e-16, 1, 1e-16, 1),
    (1e-10, 1e-10, 1e-10, 1e30),
]


def make_scorer(graph: Graph, arch: str, precision: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a function from images to float64 scores, or None unless the plan has kernels of two layers alone."""
    planned = plan(graph, arch, Choices(precision))
    if any(not isinstance(node.problem, ConvPairProblem | LinearPairProblem) for node in planned.nodes):
        return None
    first, second = planned.nodes
    return lambda x: through(second, through(first, x)).astype(np.float64)


@cache
def rounded_unbiased() -> Graph:
    return rounded(unbiased())


@cache
def rounded_biased() -> Graph:
    return rounded(biased())


@cache
def cached_plain_errors(network: Callable[[], Graph], precision: str) -> np.ndarray:
    return plain_errors(network(), images(), precision)


@cache
def sparse_graph() -> Graph:
    """Return lenet5 with weights that float16 represents exactly and 2:4 sparse filters in conv2."""
    return with_sparse_conv2(rounded_unbiased())


def nearest_powers_of_two(factors: Factors) -> Factors:
    """Return the powers of two nearest to the factors, which keep weights exact."""
    first, second, third, fourth = (2.0 ** round(np.log2(factor)) for factor in factors)
    return first, second, third, fourth


def check_errors(graph: Graph, arch: str, precision: str, limits: np.ndarray) -> None:
    """Assert errors of at most twice ``limits``, a plain implementation's errors on a network of usual scales."""
    scores = make_scorer(graph, arch, precision)
    assert scores is not None, "an ordinary kernel runs"
    found = errors(scores(images()), graph.reference(images()))
    assert (found <= 2 * limits).all(), f"{found}, a plain implementation's {limits}"


# Each architecture with every other precision for a set of factors; the GPU tests have all.
IN_TURN = [
    (factors, arch, precision)
    for at, factors in enumerate(SCALED)
    for arch, precision in zip(ARCHES, PRECISIONS[:: 1 - at % 2 * 2], strict=True)
]


@pytest.mark.grid
@pytest.mark.parametrize(("factors", "arch", "precision"), IN_TURN)
def test_scaled_layers_are_as_exact_as_others(arch: str, precision: str, factors: Factors) -> None:
    network = {"sm_80": biased, "sm_90a": unbiased}[arch]  # the latter's kernels add no bias
    check_errors(scaled(network(), factors), arch, precision, cached_plain_errors(network, precision))


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(6))
@BOTH
def test_scales_and_shapes_drawn_at_random(precision: str, seed: int) -> None:
    """Layers are scaled by 1e-8 to 1e8; some networks also have random scales of each map, or of each weight."""
    rng = np.random.default_rng(seed)
    hidden, classes = int(rng.choice([32, 128, 160, 256])), int(rng.integers(2, 17))
    usual = random_network(seed, hidden, classes)
    if seed % 3 == 2:
        uneven = {name: array * 10 ** rng.uniform(-4, 0, array.shape) for name, array in usual.parameters.items()}
        usual = replace(usual, parameters={name: array.astype(np.float32) for name, array in uneven.items()})
    powers = rng.uniform(-8, 8, 4)
    factors = 10 ** np.clip(powers - powers.mean(), -8, 8)
    graph = scaled(unit_scaled(usual, rng, 3) if seed % 3 == 1 else usual, tuple(factors))
    check_errors(graph, str(rng.choice(["sm_80", "sm_90a"])), precision, cached_plain_errors(lambda: usual, precision))


@pytest.mark.parametrize("factors", SCALED[:1])
@BOTH
@CARDS
def test_scaled_shipped_weights(arch: str, precision: str, factors: Factors) -> None:
    check_errors(scaled(shipped(), factors), arch, precision, cached_plain_errors(shipped, precision))


@pytest.mark.parametrize(("factors", "arch"), [(factors, ARCHES[at % 2]) for at, factors in enumerate(SCALED)])
def test_weights_exact_in_float16_take_fewer_products(arch: str, factors: Factors) -> None:
    """Weights scaled by powers of two stay exact, and errors stay within the bound for float32."""
    network = {"sm_80": rounded_biased, "sm_90a": rounded_unbiased}[arch]
    graph = scaled(network(), nearest_powers_of_two(factors))
    assert all(getattr(node.problem, "exact", False) for node in plan(graph, arch, Choices("fp32x")).nodes)
    check_errors(graph, arch, "fp32x", cached_plain_errors(network, "fp32x"))
    one_off = multiplied(graph, conv2=1 + 2.0**-12)
    assert not getattr(plan(one_off, arch, Choices("fp32x")).nodes[0].problem, "exact", False)


@pytest.mark.grid
@pytest.mark.parametrize("factors", SCALED)
@BOTH
def test_sparse_filters_of_any_scale(precision: str, factors: Factors) -> None:
    """Filters scaled by 1e-8 to 1e8 stay sparse and exact. One more small weight selects a dense kernel."""
    graph = scaled(sparse_graph(), nearest_powers_of_two(factors))
    assert plan(graph, "sm_90a", Choices(precision)).nodes[0].variant.sparse
    check_errors(graph, "sm_90a", precision, cached_plain_errors(sparse_graph, precision))
    filters = graph.parameters["conv2"].copy()
    filters[tuple(np.argwhere(filters == 0)[-1])] = np.abs(filters[filters != 0]).min()
    more = replace(graph, parameters={**graph.parameters, "conv2": filters})
    assert not plan(more, "sm_90a", Choices(precision)).nodes[0].variant.sparse
    check_errors(more, "sm_90a", precision, cached_plain_errors(sparse_graph, precision))


@BOTH
@CARDS
def test_powers_of_two_change_no_bit(arch: str, precision: str) -> None:
    graph = biased()
    scores = [make_scorer(g, arch, precision) for g in (graph, scaled(graph, (2.0**-26, 2.0**13, 2.0**-13, 2.0**26)))]
    found, wanted = (of(images()) if of is not None else None for of in scores)
    assert found is not None and wanted is not None
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("factors", "arch"), [(factors, ARCHES[at % 2]) for at, factors in enumerate(BEYOND)])
def test_weights_beyond_float16_are_split_into_tfloat32(arch: str, factors: Factors) -> None:
    """In auto precision other kernels run; fp16, which allows no other type, is a one-line error."""
    graph = scaled(unbiased(), factors)
    planned = plan(graph, arch, Choices("auto"))
    assert planned.arithmetic == "float16x2" and not isinstance(planned.nodes[-1].problem, LinearPairProblem)
    found = errors(reduce(lambda x, node: through(node, x), planned.nodes, images()), graph.reference(images()))
    assert (found <= 2 * cached_plain_errors(unbiased, "fp32x")).all(), found
    error = user_error(lambda: plan(graph, arch, Choices("fp16")))
    assert re.search(r"fp16 cannot represent the weights of (conv|fc)[12]: ", error)


def test_all_kernels_of_two_layers_are_covered() -> None:
    met = set()
    graphs = unbiased(), rounded_unbiased(), sparse_graph()
    for graph, arch, precision in product(graphs, ("sm_80", "sm_90a"), ("fp32x", "fp16")):
        met |= {(node.variant.source, precision) for node in plan(graph, arch, Choices(precision)).nodes}
    for graph in (unbiased(), sparse_graph()):  # see test_integers.py
        integers, _ = plan(with_bytes(graph), "sm_90a", Choices("int8")).nodes
        met.add((integers.variant.source, "int8"))
    wanted = {
        (row.source, BY_DTYPE[dtype].name)
        for name in ("conv_pair", "gemm_pair")
        for row in variants(name)
        for dtype in row.dtypes
        if "-any" not in row.name  # see test_any_pair_scales.py and test_sparse_any.py
    }
    assert met == wanted


# float16 rounds weights and activations to 11 bits; sums of two float16 keep 22.
TOLERANCE = {"float16": 2e-3, "float16x2": 1e-6}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


@pytest.mark.grid
@DTYPES
@pytest.mark.parametrize("scale1, scale2", [(1, 1), (0, 1), (1, 0), (1e-30, 1e-30), (1e4, 1e-4), (1e-4, 1e4)])
def test_mma_convolutions_of_any_scale(dtype: str, scale1: float, scale2: float) -> None:
    """Noise, black and white images give finite features; for usual scales, these are also exact."""
    problem, row = typed(convolution_pair(True, True), dtype), row_of("conv_pair", "mma")
    noise, parameters = operands(problem, 2)
    x = np.concatenate([noise, np.zeros_like(noise[:1]), np.full_like(noise[:1], 255)])
    parameters = {n: array * (scale1 if n.startswith("layer1") else scale2) for n, array in parameters.items()}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    packing = row.launch_config(problem).packing
    assert packing is not None
    assert all(array is not None and np.isfinite(array).all() for array in packing.pack(arrays))
    features, wanted = run_row(row, problem, x, arrays)[0], run(layers_of(problem), x.astype(np.float64), parameters)
    assert np.isfinite(features).all()
    if np.isclose(scale1 * scale2, 1):  # smaller features need scaling by the plan, tested above
        assert np.abs(features - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()


@DTYPES
def test_mma_row_supports_every_architecture_with_mma(dtype: str) -> None:
    row, problem = row_of("conv_pair", "mma"), typed(convolution_pair(True, True), dtype)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"):
        assert row.refusal_reason(problem, arch) is None
    assert row.refusal_reason(problem, "sm_75") == "needs sm_80 or later, this is sm_75"


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e4])
@DTYPES
def test_pairs_of_matrices_of_any_scale(dtype: str, factor: float) -> None:
    """Scores are exact if the first matrix is scaled by any factor and the second divided by it."""
    problem, row = typed(product_pair(512, 128, 10), dtype), row_of("gemm_pair", "wgmma")
    x, parameters = operands(problem, 5)
    parameters = {"layer1": parameters["layer1"] * factor, "layer2": parameters["layer2"] / factor}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    wanted = run(layers_of(problem), x, parameters).ravel()
    scores, _ = run_row(row, problem, x.astype(problem.first.input_dtype), arrays)
    assert np.abs(scores - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()


def test_infinities_and_nan_are_not_split() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3, 0], np.float32)
    high, low = split_tf32(values)
    assert np.allclose(high + low, values, rtol=2**-22, atol=0, equal_nan=True)
    assert not low[[0, 1, 2, 4]].any()


def test_balanced_products_consider_great_biases() -> None:
    """Each hidden value's scale follows from its greatest weight, or from its bias if that is greater."""
    problem = product_pair(64, 32, 3, bias1=True)
    rng = np.random.default_rng(2)
    first, second = rng.uniform(0.5, 1, (64, 32)), rng.standard_normal((32, 3))
    bias = np.where(np.arange(32) % 2, 1.0, -(2.0**40))
    w1, bias1, w2 = balance_products(problem, (first, bias, second, None))
    assert bias1 is not None
    greatest = np.maximum(np.abs(w1).max(axis=0), np.abs(bias1) / LARGEST_BIAS1)
    assert (greatest <= LARGEST).all() and (greatest > LARGEST / 2).all()
    scales = bias1 / bias
    np.testing.assert_array_equal(w1, first * scales)
    np.testing.assert_array_equal(w2, second / scales[:, None])
    without, none, _ = balance_products(problem, (first, None, second, None))
    assert none is None and (np.abs(without).max(axis=0) > LARGEST / 2).all()
