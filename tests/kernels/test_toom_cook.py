"""Test the Toom-Cook convolution: its transforms, their error bound, and the kernel, emulated on the CPU."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from app.kernels.conv.rows.toom_cook import POINTS, as_float64, error_bound, toom_cook_matrices, transform_filters
from app.kernels.problems import ConvProblem
from tests.support.kernel_cases import Case, describe
from tests.support.kernel_device import bits, host_arrays
from tests.support.kernel_grid import row_of, typed
from tests.support.kernel_oracle import check, expected, operands, to_single
from tests.support.on_processor import run_row

ROW = row_of("conv", "toom-cook")
# Each K; odd and even widths; several tiles, bands, images a block, blocks of maps and steps; edges; other types.
PROBLEMS = [
    ConvProblem(6, 11, 12, 64, 5),
    ConvProblem(2, 9, 14, 19, 1, bias=True),
    ConvProblem(3, 8, 11, 17, 2, activation="tanh"),
    ConvProblem(6, 21, 37, 70, 3, bias=True, activation="relu"),
    ConvProblem(4, 4, 8, 9, 6, padding=5),
    ConvProblem(8, 16, 29, 12, 7, activation="sigmoid"),
    ConvProblem(3, 1, 2, 5, 4, padding=3),
    ConvProblem(2, 21, 26, 33, 4, activation="relu", pool=4, pool_is_max=True),
    ConvProblem(3, 17, 23, 7, 5, bias=True, pool=5, pool_ceil=True, padding=1),
    ConvProblem(1, 28, 27, 6, 5, bias=True, activation="tanh", pool=2, input_dtype="uint8", padding=2),
    ConvProblem(3, 6, 9, 19, 3, bias=True, input_dtype="float16", output_dtype="float16", padding=1),
]
TUNED = ConvProblem(8, 13, 17, 33, 5, bias=True, activation="relu", pool=2, pool_is_max=True, pool_ceil=True)
OTHERS = [
    (("TM", 16), ("TR", 4), ("GROUPS", 4), ("WARPS", 8)),
    (("TM", 4), ("TR", 12), ("THREADS", 96), ("CK", 1)),
    (("TR", 6), ("THREADS", 384), ("CK", 8), ("WARPS", 20)),
]
# Every other case: the GPU tests have more.
CASES = [*(Case(ROW, problem) for problem in PROBLEMS), *(Case(ROW, TUNED, others) for others in OTHERS)][::2]
IMAGES = 2


@pytest.mark.grid
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_element(case: Case) -> None:
    """Packed arrays have the declared sizes and types, and y is right. An access beyond x or a parameter crashes."""
    assert case.refusal is None
    x, arrays = host_arrays(case.problem, IMAGES)
    packing = case.row.launch_config(case.problem, dict(case.parameters)).packing
    assert packing is not None
    for array, argument in zip(packing.pack(arrays), packing.takes, strict=True):
        assert array is None or (array.size, array.dtype) == (argument.fixed, argument.dtype)
    (y,) = run_row(case.row, case.problem, x, arrays, dict(case.parameters))
    check(y, case.problem, expected(case.problem, IMAGES, ROW))


def test_pooling_in_the_kernel_gives_the_bits_of_pooling_afterwards() -> None:
    """Windows of three columns do not coincide with the pairs of outputs that a thread computes."""
    pooled = ConvProblem(2, 13, 22, 5, 5, bias=True, activation="relu", pool=3, pool_is_max=True)
    x, arrays = host_arrays(pooled, 2)
    (whole,) = run_row(ROW, replace(pooled, pool=1, pool_is_max=False), x, arrays)
    windows = whole.reshape(2, 5, 3, 3, 6, 3).max(axis=(3, 5))
    np.testing.assert_array_equal(bits(run_row(ROW, pooled, x, arrays)[0]), bits(windows.ravel()))


@pytest.mark.parametrize("taps", POINTS)
def test_the_transforms_are_an_identity(taps: int) -> None:
    """In exact fractions y[i] = Σ g[k] d[i + k] for all unit vectors; float32 represents the transforms of x and y."""
    to_inputs, to_filters, to_outputs = toom_cook_matrices(taps)
    for i in range(2):
        for k in range(taps):
            for at in range(taps + 1):
                found = sum(to_outputs[i][j] * to_filters[j][k] * to_inputs[j][at] for j in range(taps + 1))
                assert found == (i + k == at)
    for value in (value for matrix in (to_inputs, to_outputs) for line in matrix for value in line):
        assert Fraction(float(np.float32(float(value)))) == value
    # The kernel assumes a leading coefficient of 1, and a factor of 1 for infinity in the second output alone.
    assert all(line[taps - 1] == 1 and line[taps] == 0 for line in to_inputs[:-1]) and to_inputs[-1][taps] == 1
    assert to_outputs[0] == (*(1,) * taps, 0) and to_outputs[1][taps] == 1


@pytest.mark.parametrize("problem", PROBLEMS[:6], ids=describe)
def test_error_bound_covers_results_and_is_tight(problem: ConvProblem) -> None:
    """Magnitudes exceed all results, include the bias, and are at most a small multiple of a plain sum's."""
    images = 2
    plain = replace(problem, activation="", bias=False)
    x, given = operands(plain, images)
    w = given["layer"].transpose(2, 0, 1, 3)
    roundings, magnitude = error_bound(plain, x, w, None)
    wanted = expected(plain, images, ROW)
    assert wanted.roundings == roundings and np.array_equal(wanted.magnitude, magnitude.ravel())
    bias = np.random.default_rng(5).standard_normal(problem.maps).astype(np.float32)
    more, greater = error_bound(plain, x, w, bias)
    np.testing.assert_array_equal(greater, magnitude + np.abs(bias.astype(np.float64))[:, None, None])
    assert more == roundings
    # The magnitude is what the outputs would be if every term of every transform were positive.
    plainest = expected(plain, images, row_of("conv", "direct"))
    assert (magnitude.ravel() >= np.abs(plainest.exact) * (1 - 1e-12)).all()
    amplified = (magnitude.ravel().mean() / plainest.magnitude.mean()).item()
    assert amplified < {1: 2, 2: 3, 3: 4, 4: 6, 5: 9, 6: 16, 7: 20}[problem.kernel]


@pytest.mark.parametrize(("taps", "most"), [(3, 1.2), (5, 1.6), (7, 2.6)])
def test_errors_are_not_much_greater_than_those_of_a_plain_sum(taps: int, most: float) -> None:
    """RMS errors over random operands of 32 channels, in float32, are at most ``most`` times those of a plain sum."""
    rng = np.random.default_rng(taps)
    d, g = rng.standard_normal((300, 32 * taps, taps + 1)), rng.standard_normal((300, 32 * taps, taps))
    d, g = to_single(d).astype(np.float64), to_single(g).astype(np.float64)
    to_inputs, _, to_outputs = (as_float64(matrix) for matrix in toom_cook_matrices(taps))
    exact = np.stack([(d[..., i : i + taps] * g).sum(axis=(1, 2)) for i in range(2)], axis=1)
    values = sum_in_float32(d[..., None, :] * to_inputs)
    filters = to_single(transform_filters(g.reshape(-1, 1, taps, 1).repeat(taps, 1))[:, :, 0, 0]).astype(np.float64)
    sums = sum_in_float32(np.moveaxis(values * filters.reshape(*g.shape[:2], -1), 1, -1))
    found = sum_in_float32(sums[:, None] * to_outputs)
    plain = sum_in_float32(np.stack([(d[..., i : i + taps] * g).reshape(300, -1) for i in range(2)], axis=1))
    errors = [np.sqrt(np.mean((y - exact) ** 2)) for y in (found, plain)]
    assert errors[0] < most * errors[1]


def sum_in_float32(terms: np.ndarray) -> np.ndarray:
    """Return sums over the last axis, with each partial sum rounded to float32."""
    total = np.zeros(terms.shape[:-1])
    for at in range(terms.shape[-1]):
        total = to_single(total + terms[..., at]).astype(np.float64)
    return total


def test_toom_cook_refuses_unsupported_problems() -> None:
    problem = ConvProblem(4, 19, 23, 33, 5)
    assert ROW.refusal_reason(problem, "sm_75") is None and not ROW.automatic
    assert "stride 1 alone" in str(ROW.refusal_reason(replace(problem, stride=2), "sm_90a"))
    assert "at most 7 x 7" in str(ROW.refusal_reason(replace(problem, kernel=8), "sm_90a"))
    assert "whole pooling windows" in str(ROW.refusal_reason(replace(problem, pool=3), "sm_90a", {"TR": 4}))
    assert "staged 8 at a time" in str(ROW.refusal_reason(problem, "sm_90a", {"CK": 8}))
    assert "computes in float32" in str(ROW.refusal_reason(typed(problem, "float16"), "sm_90a"))
    assert ROW.work(problem) == 0.6
