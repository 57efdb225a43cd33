"""Products by warpgroups, of one layer and of two: what is packed, read as the kernel reads it, and the ring."""

from typing import Any

import numpy as np
import pytest

from app.kernels.fused.scaling import LOW_SCALE
from app.kernels.problems import LinearProblem
from app.layers import ACTIVATIONS
from tests.support.kernel_cases import Case, batches, served
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import PRODUCT_PAIRS, PRODUCTS, row_of
from tests.support.kernel_oracle import check, expected, expected_of, operands
from tests.support.pair_emulation import any_products, half, operand

ROW = row_of("gemm", "warpgroup")
CASES = [case for case in served(ROW, PRODUCTS) if case.problem.outputs < 10_000]  # type: ignore[union-attr]
PAIRS = list(served(row_of("gemm_pair", "wgmma-any"), PRODUCT_PAIRS))
DEPTH = 64  # inputs a stage
ALL_CASES = pytest.mark.parametrize("case", CASES, ids=str)


def linear(case: Case) -> LinearProblem:
    assert isinstance(case.problem, LinearProblem)
    return case.problem


def sums(problem: LinearProblem, words: np.ndarray, x: np.ndarray, tile: int) -> np.ndarray:
    """(images, tile): what a block makes of its weights (steps, parts, planes, tile, 8) and of x (images, inputs)."""
    steps, plane = len(words) // (problem.weight_parts * DEPTH * tile), tile * 8
    padded = np.pad(x, ((0, 0), (0, steps * DEPTH - x.shape[1])))
    high = half(padded)
    parts = [high, half(LOW_SCALE * (padded - high))][: problem.parts]
    found = np.zeros((len(x), tile))
    for k in range(0, steps * DEPTH, 16):
        for w_part, x_part in ((0, 0), (1, 0), (0, 1)):
            if w_part >= problem.weight_parts or x_part >= problem.parts:
                continue
            start = ((k // DEPTH * problem.weight_parts + w_part) * DEPTH + k % DEPTH) // 8 * plane
            terms = parts[x_part][:, k : k + 16] @ operand(words, start, plane, 64, tile)
            found += terms / (LOW_SCALE if w_part + x_part else 1)
    return found


@ALL_CASES
def test_packed_weights_read_as_the_kernel_does_give_the_layer_s_results(case: Case) -> None:
    problem, images = linear(case), batches(case.problem)[0]
    config = ROW.config(problem)
    x, arrays = host_arrays(problem, images)
    packing = config.packing
    assert packing is not None
    packed: Any = packing.pack(arrays)
    for array, argument in zip(packed, packing.takes, strict=True):
        assert (array is None) == argument.optional
        assert array is None or (array.dtype.name, array.size) == (argument.dtype, argument.fixed)
    words, factors, bias = packed
    tile = int(config.defines["TILE"])
    blocks = words.astype(np.float64).reshape(config.launches[0].grid(images)[1], -1)
    y = np.concatenate([sums(problem, own, x.astype(np.float64), tile) for own in blocks], axis=1)
    y = y[:, : problem.outputs] * factors + (0 if bias is None else bias)
    y = y if not problem.activation else ACTIVATIONS[problem.activation]("").reference(y, {})
    y = y.astype(np.float32).astype(problem.output_dtype)
    check(y.ravel(), problem, expected(problem, images, ROW))


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_packed_pairs_read_as_the_kernel_does_give_both_layers_results(case: Case) -> None:
    problem: Any = case.problem
    x, parameters = operands(problem, 31)
    stored, arrays = host_arrays(problem, 31)
    packing = case.row.config(problem).packing
    assert packing is not None
    scores = any_products(problem, packing.pack(arrays), stored.astype(np.float64))
    check(scores.ravel(), problem, expected_of(problem, x.astype(np.float64), parameters))


@ALL_CASES
@pytest.mark.parametrize("rows", ROW.tunables["ROWS"])
def test_no_stage_is_read_before_it_is_full(case: Case, rows: int) -> None:
    """Producers wait for a step when LAG later ones are on their way: there must be as many, and a stage for each."""
    defines = ROW.config(linear(case), {"ROWS": rows}).defines
    stages, lag, steps = int(defines["STAGES"]), int(defines["LAG"]), -(-linear(case).inputs // DEPTH)
    assert 0 <= lag < stages <= steps and (stages > 1 or steps == 1)
