"""lenet5 with layers of any scale on kernels of two layers, run by the processor: as exact as float32, or others run.

Scaling layers by factors whose product is 1 leaves the scores as they are, and so float32's error.
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
# Beyond what float16 holds of one layer or another, whatever scales it.
BEYOND: list[Factors] = [
    (1e-8, 1e-8, 1e-8, 1e-8),
    (1e12, 1e12, 1e12, 1),
    (1e-16, 1, 1e-16, 1),
    (1e-10, 1e-10, 1e-10, 1e30),
]


def on_pairs(graph: Graph, arch: str, precision: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """What gives an image's scores; None where not all of the network is computed two layers at once."""
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
def usual_errors(network: Callable[[], Graph], precision: str) -> np.ndarray:
    return plain_errors(network(), images(), precision)


@cache
def sparse() -> Graph:
    """Weights that float16 holds, conv2's 2:4 sparse."""
    return with_sparse_conv2(rounded_unbiased())


def powers_of_two(factors: Factors) -> Factors:
    """The nearest ones, by which weights stay exact."""
    first, second, third, fourth = (2.0 ** round(np.log2(factor)) for factor in factors)
    return first, second, third, fourth


def check(graph: Graph, arch: str, precision: str, limits: np.ndarray) -> None:
    """Errors at most twice those of a plain implementation in that precision, of a network of usual scales."""
    scores = on_pairs(graph, arch, precision)
    assert scores is not None, "an ordinary kernel runs"
    found = errors(scores(images()), graph.reference(images()))
    assert (found <= 2 * limits).all(), f"{found}, a plain implementation's {limits}"


# Each card and precision with every other set of factors: tests on a card have all.
IN_TURN = [
    (factors, arch, precision)
    for at, factors in enumerate(SCALED)
    for arch, precision in zip(ARCHES, PRECISIONS[:: 1 - at % 2 * 2], strict=True)
]


@pytest.mark.grid
@pytest.mark.parametrize(("factors", "arch", "precision"), IN_TURN)
def test_scaled_layers_are_as_exact_as_others(arch: str, precision: str, factors: Factors) -> None:
    network = {"sm_80": biased, "sm_90a": unbiased}[arch]  # the latter's kernels add no bias
    check(scaled(network(), factors), arch, precision, usual_errors(network, precision))


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(6))
@BOTH
def test_scales_and_shapes_drawn_at_random(precision: str, seed: int) -> None:
    """Of layers from 1e-8 to 1e8, their product 1; of each map and hidden value; of each weight."""
    rng = np.random.default_rng(seed)
    hidden, classes = int(rng.choice([32, 128, 160, 256])), int(rng.integers(2, 17))
    usual = random_network(seed, hidden, classes)
    if seed % 3 == 2:
        uneven = {name: array * 10 ** rng.uniform(-4, 0, array.shape) for name, array in usual.parameters.items()}
        usual = replace(usual, parameters={name: array.astype(np.float32) for name, array in uneven.items()})
    powers = rng.uniform(-8, 8, 4)
    factors = 10 ** np.clip(powers - powers.mean(), -8, 8)
    graph = scaled(unit_scaled(usual, rng, 3) if seed % 3 == 1 else usual, tuple(factors))
    check(graph, str(rng.choice(["sm_80", "sm_90a"])), precision, usual_errors(lambda: usual, precision))


@pytest.mark.parametrize("factors", SCALED[:1])
@BOTH
@CARDS
def test_shipped_weights_scaled(arch: str, precision: str, factors: Factors) -> None:
    check(scaled(shipped(), factors), arch, precision, usual_errors(shipped, precision))


@pytest.mark.parametrize(("factors", "arch"), [(factors, ARCHES[at % 2]) for at, factors in enumerate(SCALED)])
def test_weights_that_float16_holds_take_fewer_products(arch: str, factors: Factors) -> None:
    """Scaled by powers of two: at most the errors of float32."""
    network = {"sm_80": rounded_biased, "sm_90a": rounded_unbiased}[arch]
    graph = scaled(network(), powers_of_two(factors))
    assert all(getattr(node.problem, "exact", False) for node in plan(graph, arch, Choices("fp32x")).nodes)
    check(graph, arch, "fp32x", usual_errors(network, "fp32x"))
    one_off = multiplied(graph, conv2=1 + 2.0**-12)
    assert not getattr(plan(one_off, arch, Choices("fp32x")).nodes[0].problem, "exact", False)


@pytest.mark.parametrize("factors", SCALED)
@BOTH
def test_sparse_filters_of_any_scale(precision: str, factors: Factors) -> None:
    """From 1e-8 to 1e8: they stay sparse, and as exact as others. One weight more, however small, is not."""
    graph = scaled(sparse(), powers_of_two(factors))
    assert plan(graph, "sm_90a", Choices(precision)).nodes[0].variant.sparse
    check(graph, "sm_90a", precision, usual_errors(sparse, precision))
    filters = graph.parameters["conv2"].copy()
    filters[tuple(np.argwhere(filters == 0)[-1])] = np.abs(filters[filters != 0]).min()
    more = replace(graph, parameters={**graph.parameters, "conv2": filters})
    assert not plan(more, "sm_90a", Choices(precision)).nodes[0].variant.sparse
    check(more, "sm_90a", precision, usual_errors(sparse, precision))


@BOTH
@CARDS
def test_powers_of_two_change_no_bit(arch: str, precision: str) -> None:
    graph = biased()
    scores = [on_pairs(g, arch, precision) for g in (graph, scaled(graph, (2.0**-26, 2.0**13, 2.0**-13, 2.0**26)))]
    found, wanted = (of(images()) if of is not None else None for of in scores)
    assert found is not None and wanted is not None
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("factors", "arch"), [(factors, ARCHES[at % 2]) for at, factors in enumerate(BEYOND)])
def test_what_float16_does_not_hold_is_split_into_tfloat32(arch: str, factors: Factors) -> None:
    """Or, in fp16, which was asked for, ends in one line."""
    graph = scaled(unbiased(), factors)
    planned = plan(graph, arch, Choices("auto"))
    assert planned.arithmetic == "float16x2" and not isinstance(planned.nodes[-1].problem, LinearPairProblem)
    found = errors(reduce(lambda x, node: through(node, x), planned.nodes, images()), graph.reference(images()))
    assert (found <= 2 * usual_errors(unbiased, "fp32x")).all(), found
    error = user_error(lambda: plan(graph, arch, Choices("fp16")))
    assert re.search(r"fp16 cannot represent the weights of (conv|fc)[12]: ", error)


def test_every_kernel_of_two_layers_is_met_above() -> None:
    met = set()
    graphs = unbiased(), rounded_unbiased(), sparse()
    for graph, arch, precision in product(graphs, ("sm_80", "sm_90a"), ("fp32x", "fp16")):
        met |= {(node.variant.source, precision) for node in plan(graph, arch, Choices(precision)).nodes}
    for graph in (unbiased(), sparse()):  # see test_integers.py
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


# float16 rounds weights and what is between the layers to 11 bits; their sums of two keep 22.
TOLERANCE = {"float16": 2e-3, "float16x2": 1e-6}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


@pytest.mark.grid
@DTYPES
@pytest.mark.parametrize("scale1, scale2", [(1, 1), (0, 1), (1, 0), (1e-30, 1e-30), (1e4, 1e-4), (1e-4, 1e4)])
def test_mma_s_convolutions_of_any_scale(dtype: str, scale1: float, scale2: float) -> None:
    """Of noise, black and white. What is packed is finite, and so is what lies between the layers."""
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
    if np.isclose(scale1 * scale2, 1):  # others are too small for float16: plans scale those, see above
        assert np.abs(features - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()


@DTYPES
def test_the_row_fits_every_card_with_its_instructions(dtype: str) -> None:
    row, problem = row_of("conv_pair", "mma"), typed(convolution_pair(True, True), dtype)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"):
        assert row.refusal_reason(problem, arch) is None
    assert row.refusal_reason(problem, "sm_75") == "needs sm_80 or later, this is sm_75"


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e4])
@DTYPES
def test_matrices_of_any_scale(dtype: str, factor: float) -> None:
    """However small or large the first matrix is, which the second undoes: float16 keeps its bits by a power of two."""
    problem, row = typed(product_pair(512, 128, 10), dtype), row_of("gemm_pair", "wgmma")
    x, parameters = operands(problem, 5)
    parameters = {"layer1": parameters["layer1"] * factor, "layer2": parameters["layer2"] / factor}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    wanted = run(layers_of(problem), x, parameters).ravel()
    scores, _ = run_row(row, problem, x.astype(problem.first.input_dtype), arrays)
    assert np.abs(scores - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()


def test_what_is_not_finite_is_not_split() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3, 0], np.float32)
    high, low = split_tf32(values)
    assert np.allclose(high + low, values, rtol=2**-22, atol=0, equal_nan=True)
    assert not low[[0, 1, 2, 4]].any()


def test_a_great_bias_counts_when_products_are_balanced() -> None:
    """Each hidden value's scale follows from its weights or, where that is more, from its bias."""
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
