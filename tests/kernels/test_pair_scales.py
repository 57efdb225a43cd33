"""lenet5 with layers of any scale on the kernels of two layers, emulated: as exact as float32, or others run.

Scaling layers by factors whose product is 1 leaves the scores as they are, and so float32's error.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from app.errors import UserError
from app.kernels.problems import ConvPairProblem, LinearPairProblem
from app.kernels.registry import variants
from app.network.graph import Graph
from app.planning.matching import Choices, Node
from app.planning.plan import plan
from tests.support import pair_emulation
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

Factors = tuple[float, float, float, float]
CARDS = pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])  # mma; wgmma, where that serves
BOTH = pytest.mark.parametrize("precision", ["fp32x", "fp16"])
SCALED: list[Factors] = [
    (1e-4, 1e-4, 1e4, 1e4),
    (1e-6, 1e-6, 1e6, 1e6),
    (1e8, 1e8, 1e-8, 1e-8),
    (1e8, 1e-8, 1e8, 1e-8),
    (1e8, 1e8, 1e8, 1),
    (1, 1e-8, 1, 1),
]
# Beyond: the products of these are not float32's to hold, or all but.
BEYOND: list[Factors] = [
    (1e-8, 1e-8, 1e-8, 1e-8),
    (1e12, 1e12, 1e12, 1),
    (1e-20, 1, 1e-20, 1),
    (1e-10, 1e-10, 1e-10, 1e30),
]


def through(node: Node, x: np.ndarray) -> np.ndarray:
    """What the pair's kernel makes of it, as stored: (images, elements)."""
    problem = node.problem
    packing = node.variant.config(problem, node.settings).packing
    assert packing is not None and isinstance(problem, ConvPairProblem | LinearPairProblem)
    packed = packing.pack(node.parameters)
    assert all(array is None or np.isfinite(array).all() for array in packed)
    if isinstance(problem, ConvPairProblem):
        if node.variant.name == "mma":
            y, _ = pair_emulation.mma_convolutions(problem, packed, x[:, 0])
        else:
            y = pair_emulation.convolutions(problem, packed, x[:, 0])
    elif node.variant.name == "mma":
        y = pair_emulation.products(problem, packed, x.astype(np.float64))
    else:
        y = pair_emulation.wgmma_products(problem, packed, x.astype(np.float64))[:, : problem.second.outputs]
    stored = y.reshape(len(x), -1).astype(problem.second.output_dtype)
    assert np.isfinite(stored).all()
    return stored


def on_pairs(graph: Graph, arch: str, precision: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """What gives an image's scores; None where not all of the network is computed two layers at once."""
    planned = plan(graph, arch, Choices(precision))
    if any(not isinstance(node.problem, ConvPairProblem | LinearPairProblem) for node in planned.nodes):
        return None
    first, second = planned.nodes
    return lambda x: through(second, through(first, x)).astype(np.float64)


@cache
def usual_errors(network: Callable[[], Graph], precision: str) -> np.ndarray:
    return plain_errors(network(), images(), precision)


def check(graph: Graph, arch: str, precision: str, limits: np.ndarray) -> None:
    """Errors at most twice those of a plain implementation in that precision, of a network of usual scales."""
    scores = on_pairs(graph, arch, precision)
    assert scores is not None, "an ordinary kernel runs"
    found = errors(scores(images()), graph.reference(images()))
    assert (found <= 2 * limits).all(), f"{found}, a plain implementation's {limits}"


@pytest.mark.parametrize("factors", SCALED, ids=lambda factors: "-".join(f"{factor:g}" for factor in factors))
@BOTH
@CARDS
def test_scaled_layers_are_as_exact_as_others(arch: str, precision: str, factors: Factors) -> None:
    network = {"sm_80": biased, "sm_90a": unbiased}[arch]  # the latter's kernels add no bias
    check(scaled(network(), factors), arch, precision, usual_errors(network, precision))


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
    check(graph, rng.choice(["sm_80", "sm_90a"]), precision, usual_errors(lambda: usual, precision))


@pytest.mark.parametrize("factors", SCALED[:2])
@BOTH
@CARDS
def test_shipped_weights_scaled(arch: str, precision: str, factors: Factors) -> None:
    check(scaled(shipped(), factors), arch, precision, usual_errors(shipped, precision))


@BOTH
@CARDS
def test_powers_of_two_change_no_bit(arch: str, precision: str) -> None:
    graph = biased()
    scores = [on_pairs(g, arch, precision) for g in (graph, scaled(graph, (2.0**-26, 2.0**13, 2.0**-13, 2.0**26)))]
    found, wanted = (of(images()) if of is not None else None for of in scores)
    assert found is not None and wanted is not None
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("factors", BEYOND, ids=lambda factors: "-".join(f"{factor:g}" for factor in factors))
@CARDS
def test_what_float32_all_but_loses_runs_in_float32(arch: str, factors: Factors) -> None:
    """Or, in fp16, which was asked for, ends in one line."""
    graph = scaled(unbiased(), factors)
    assert {node.problem.dtype for node in plan(graph, arch, Choices("auto")).nodes if node.parameters} == {"float32"}
    *_, products = plan(graph, arch, Choices("fp32x")).nodes
    assert products.problem.dtype == "float32"  # its convolutions' features need not be scaled
    with pytest.raises(UserError, match=r"fp16 cannot hold the weights of (conv|fc)[12]: ") as caught:
        plan(graph, arch, Choices("fp16"))
    assert "\n" not in str(caught.value)


def test_every_kernel_of_two_layers_is_met_above() -> None:
    met = set()
    for arch in ("sm_80", "sm_90a"):
        for precision in ("fp32x", "fp16"):
            nodes = plan(unbiased(), arch, Choices(precision)).nodes
            met |= {(node.variant.source, precision) for node in nodes}
    wanted = {
        (row.source, {"float16": "fp16", "float16x2": "fp32x"}[dtype])
        for name in ("conv_pair", "gemm_pair")
        for row in variants(name)
        for dtype in row.dtypes
    }
    assert met == wanted
