"""Test that the kernels' tests can fail: errors that the tolerance table accepts, and errors that it rejects."""

from dataclasses import replace

import numpy as np
import pytest

from app.kernels.plain_problems import ActivationProblem, SoftmaxProblem
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem, Problem, operation
from app.kernels.variant import Variant
from tests.support.kernel_cases import (
    GRID,
    OPERATIONS,
    STORED,
    STRIDE_1,
    architecture,
    batches,
    grid_cases,
    small_cases,
    tuned_cases,
)
from tests.support.kernel_grid import convolution_pair, product_pair, row_of, typed
from tests.support.kernel_oracle import check, expected, layers_of, operands, plain, run

CONV = ConvProblem(3, 11, 14, 17, 4, 2, bias=True, activation="tanh")
PROBLEMS: list[Problem] = [
    CONV,
    replace(CONV, activation="relu", pool=2, input_dtype="uint8"),
    LinearProblem(70, 33, bias=True, activation="sigmoid"),
    PoolProblem(3, 9, 8, 3, 2, False),
    PoolProblem(3, 9, 8, 3, 2, True),
    PoolProblem(3, 9, 8, 3, 2, False, ceil=True),
    ActivationProblem(33, "sigmoid"),
    ActivationProblem(33, "relu"),
    SoftmaxProblem(10),
]
IMAGES = 7
OWN_STORAGE = ("warpgroup", "warpgroup-sparse")  # read only the type that they multiply


DIRECT, HALF2 = row_of("conv", "direct"), row_of("conv", "half2")


def reference_results(problem: Problem, dtype: type) -> np.ndarray:
    """Return the layers' NumPy reference results for the problem's operands, computed in ``dtype``."""
    x, parameters = operands(problem, IMAGES)
    return run(layers_of(problem), x.astype(dtype), parameters)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_float32_errors_pass_and_greater_ones_fail(problem: Problem) -> None:
    wanted = expected(problem, IMAGES, DIRECT)
    y = reference_results(problem, np.float32)
    assert check(y, problem, wanted) <= 1
    check(y[: len(y) // IMAGES], problem, wanted)  # fewer images
    if not isinstance(problem, SoftmaxProblem):  # its tolerance is wide enough for other implementations of exp
        stored = np.where(np.abs(y) > 1e-3, y * (1 + 2.0**-11), y)
        with pytest.raises(AssertionError, match=r"element \d+ of \d+ is"):
            check(stored, problem, wanted)
    for bad in (np.nan, y[3] + 0.01, y[3] - 0.01, np.inf):
        wrong = y.copy()
        wrong[3] = bad
        with pytest.raises(AssertionError, match="element 3 of"):
            check(wrong, problem, wanted)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_float64_problems_reject_float32_errors(problem: Problem) -> None:
    wide = typed(problem, "float64")
    wanted = expected(wide, IMAGES, DIRECT)
    assert check(reference_results(wide, np.float64), wide, wanted) <= 1
    narrow = reference_results(wide, np.float32)
    if not np.array_equal(narrow, wanted.exact):
        with pytest.raises(AssertionError):
            check(narrow, wide, wanted)


@pytest.mark.parametrize("dtype", ["float16", "tfloat32"])
@pytest.mark.parametrize("row", [DIRECT, HALF2], ids=lambda row: row.name)
def test_coarse_types_may_err_twice_as_much_as_a_plain_implementation(row: Variant, dtype: str) -> None:
    problem = replace(CONV, dtype=dtype)
    wanted = expected(problem, IMAGES, row if dtype == "float16" else DIRECT)
    assert wanted.plain is not None
    error = wanted.plain - wanted.exact
    assert 1e-5 < np.abs(error).max() < 1e-2
    check(wanted.plain, problem, wanted)
    check(wanted.exact + 1.9 * error, problem, wanted)
    with pytest.raises(AssertionError, match="element"):
        check(wanted.exact + 2.5 * error, problem, wanted)
    with pytest.raises(AssertionError, match="RMS"):
        check(wanted.exact + np.abs(error).max(), problem, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float16x2"])
@pytest.mark.parametrize("pair", [product_pair(192, 64, 10, True, True), convolution_pair()], ids=operation)
def test_pairs_may_err_twice_as_much_as_a_plain_implementation(pair: Problem, dtype: str) -> None:
    """In float16x2 the plain implementation is in float32: float16's errors fail, and even a hundredth of them."""
    problem, coarse = typed(pair, dtype), expected(typed(pair, "float16"), IMAGES, DIRECT)
    wanted = expected(problem, IMAGES, DIRECT)
    assert wanted.plain is not None and coarse.plain is not None
    error = wanted.plain - wanted.exact
    check(wanted.plain, problem, wanted)
    check(wanted.exact + 1.9 * error, problem, wanted)
    with pytest.raises(AssertionError, match="element"):
        check(wanted.exact + 12 * error, problem, wanted)
    if dtype == "float16":
        with pytest.raises(AssertionError, match="RMS"):
            check(wanted.exact + 1.5 * np.abs(error).max(), problem, wanted)
        return
    check(wanted.exact + 1.5 * np.abs(error).max(), problem, wanted)
    for share in (1, 0.01):
        with pytest.raises(AssertionError, match="element"):
            check(wanted.exact + share * (coarse.plain - coarse.exact), problem, wanted)


def test_sums_in_half_err_more_than_sums_in_float() -> None:
    problem = ConvProblem(33, 9, 9, 5, 5, dtype="float16")
    x, parameters = operands(problem, 2)
    exact = expected(problem, 2, DIRECT).exact
    errors = [np.abs(plain(problem, x, parameters, in_half) - exact).max() for in_half in (False, True)]
    assert errors[1] > 2 * errors[0]


def test_rounding_of_float16_storage_is_tolerated() -> None:
    problem = replace(CONV, input_dtype="float16", output_dtype="float16")
    wanted = expected(problem, IMAGES, DIRECT)
    y = reference_results(problem, np.float32)
    check(y.astype(np.float16), problem, wanted)
    with pytest.raises(AssertionError):
        check(y.astype(np.float16), replace(problem, output_dtype="float32"), wanted)


def test_cases_cover_types_sizes_and_storage() -> None:
    """Cases have each row in all its types, filters of 1 to 7, strides 1 to 3, 1 to 67 images, all storage types."""
    cases = grid_cases()
    names = [str(case) for case in cases]
    assert len(set(names)) == len(names)
    assert {case.row.operation for case in cases} == set(OPERATIONS)
    for row in {id(case.row): case.row for case in cases}.values():
        own = [case.problem for case in cases if case.row is row]
        assert {problem.dtype for problem in own} == set(row.dtypes)
        convs = [problem for problem in own if isinstance(problem, ConvProblem)]
        if convs and row.taught:
            strides = (1,) if row.name in STRIDE_1 else (1, 2, 3)
            assert {(k, s) for k in range(1, 8) for s in strides} <= {(p.kernel, p.stride) for p in convs}
            assert any(p.pool > 1 for p in convs) == any(p.pool_ceil for p in convs) == row.pools
        if row.operation in STORED and row.name not in OWN_STORAGE:
            pairs = {(p.input_dtype, p.output_dtype) for p in own}  # type: ignore[union-attr]
            assert {(x, y) for x in ("uint8", "float16", "float32") for y in ("float16", "float32")} <= pairs
        # NumPy is too slow for two convolutions on 67 images; test_gpu_pairs.py has more of them.
        wanted = {1, 5} if row.operation == "conv_pair" else {1, 5, 67}
        assert wanted <= {images for problem in own for images in batches(problem)}
        assert any(case.row is row for case in small_cases())
        assert not row.tunables or any(case.row is row for case in tuned_cases())
    assert architecture().startswith("sm_") and all(GRID.values())
