"""Test every kernel of the registry on a GPU: each element against the layers' NumPy references."""

from dataclasses import replace

import numpy as np
import pytest

from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, SoftmaxProblem
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem, Problem, operation
from app.kernels.registry import variants
from app.layers import ACTIVATIONS
from tests.support.kernel_cases import (
    OWN_ORDER,
    Case,
    architecture,
    batches,
    elements,
    grid_cases,
    on_a_card,
    small_cases,
    tuned_cases,
)
from tests.support.kernel_device import (
    bits,
    check_softmax_and_labels,
    compile_selected,
    host_arrays,
    kernel_of,
    launch,
    results,
    softmax_cases,
)
from tests.support.kernel_grid import row_of
from tests.support.kernel_oracle import check, expected, operands

pytestmark = pytest.mark.gpu
FUSED = [
    Case(row, replace(problem, activation=function))
    for problem in (ConvProblem(3, 21, 17, 19, 5, bias=True), LinearProblem(97, 35, bias=True))
    for row in variants(operation(problem))
    for function in ACTIVATIONS
    if "float32" in row.dtypes
]
EXACT_ORDER = {"conv": "direct", "gemm": "naive", "pool": "direct"}  # whose float32 bits all others must give


@pytest.fixture(scope="module", autouse=True)
def compile_kernels(request: pytest.FixtureRequest) -> None:
    compile_selected(request)


def check_against_reference(case: Case, images: int) -> None:
    """Run the case on the GPU and check every element of y, and the labels if the kernel computes the argmax."""
    y, *labels = results(case, images)
    if isinstance(case.problem, ArgmaxProblem):
        x, _ = operands(case.problem, images)
        np.testing.assert_array_equal(y, x.argmax(axis=1))
        return
    check(y, case.problem, expected(case.problem, images, case.row))
    if labels:
        np.testing.assert_array_equal(labels[0], y.reshape(images, -1).argmax(axis=1))


@pytest.mark.parametrize("case", on_a_card(grid_cases), ids=str)
def test_grid(case: Case) -> None:
    for images in batches(case.problem):
        check_against_reference(case, images)


@pytest.mark.parametrize("case", on_a_card(tuned_cases), ids=str)
def test_parameters_other_than_defaults(case: Case) -> None:
    for images in batches(case.problem)[:2]:
        check_against_reference(case, images)


@pytest.mark.parametrize("case", on_a_card(small_cases), ids=str)
def test_small(case: Case) -> None:
    """Small cases, which compute-sanitizer also runs (tests/sanitize.py)."""
    check_against_reference(case, 3)


def _ordered_cases() -> list[Case]:
    """Return the float32 cases of rows that must give the bits of the plainest kernel."""
    return [
        case
        for case in grid_cases()
        if case.row.operation in EXACT_ORDER
        and case.problem.dtype == "float32"
        and (case.row.operation, case.row.name) not in OWN_ORDER
        and case.row.name != EXACT_ORDER[case.row.operation]
        and _plainest_case(case.problem).refusal in (None, "does not take the argmax")
    ]


def _plainest_case(problem: Problem) -> Case:
    """Return the case of the plainest kernel for the problem, without a convolution's pooling."""
    kind = operation(problem)
    problem = replace(problem, pool=1, pool_is_max=False) if isinstance(problem, ConvProblem) else problem
    return Case(row_of(kind, EXACT_ORDER[kind]), problem)


@pytest.mark.parametrize("case", on_a_card(_ordered_cases), ids=str)
def test_all_float32_kernels_agree_to_the_bit(case: Case) -> None:
    """All float32 kernels add terms in the same order, and pooling in registers equals pooling by a separate kernel."""
    images = batches(case.problem)[0]
    y = results(case, images)[0]
    problem = case.problem
    softmax = isinstance(problem, LinearProblem) and problem.softmax
    if isinstance(problem, LinearProblem) and problem.argmax:
        problem = replace(problem, argmax=False, softmax=False)
    if isinstance(problem, ConvProblem) and problem.pool > 1:
        if problem.output_dtype != "float32":
            pytest.skip("unpooled values would be rounded before they are pooled")
        # The random operands depend on the problem: those of the pooled one are wanted.
        whole = launch(kernel_of(_plainest_case(problem)), *host_arrays(problem, images))[0]
        height, width = problem.conv_output_size
        window = problem.pool, problem.pool, problem.pool_is_max
        pool = PoolProblem(problem.maps, height, width, *window, ceil=problem.pool_ceil)
        shaped = whole.reshape(images, problem.maps, height, width)
        plain = launch(kernel_of(_plainest_case(pool)), shaped, [])[0]
    else:
        plain = launch(kernel_of(_plainest_case(problem)), *host_arrays(case.problem, images))[0]
    if softmax:
        alone = SoftmaxProblem(elements(problem))
        plain = launch(kernel_of(Case(variants("softmax")[0], alone)), plain.reshape(images, -1), [])[0]
    assert y.size == images * elements(problem)
    np.testing.assert_array_equal(bits(y), bits(plain))


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_fused_and_separate_activations_agree_to_the_bit(case: Case) -> None:
    """An activation fused into a convolution or product gives the bits of a separate activation kernel."""
    fused, arrays = case.problem, host_arrays(case.problem, 7)
    assert isinstance(fused, ConvProblem | LinearProblem)
    together = launch(kernel_of(case), *arrays)[0]
    apart = launch(kernel_of(replace(case, problem=replace(fused, activation=""))), *arrays)[0]
    (elementwise,) = variants("activation")
    activation = Case(elementwise, ActivationProblem(elements(fused), fused.activation))
    np.testing.assert_array_equal(bits(together), bits(launch(kernel_of(activation), apart.reshape(7, -1), [])[0]))


def test_argmax_ties_and_nan_follow_numpy() -> None:
    """The label is the first of equal maxima; NaN is greater than every number, and infinities compare as numbers."""
    x = np.zeros((7, 10), np.float32)
    x[1, [3, 7]] = 5
    x[2, [4, 6]] = np.nan
    x[3] = -np.inf
    x[4, 9] = np.inf
    x[5] = np.arange(10)[::-1]
    x[6, 9] = np.nan
    for row in variants("argmax"):
        np.testing.assert_array_equal(launch(kernel_of(Case(row, ArgmaxProblem(10))), x, [])[0], x.argmax(axis=1))
    # Fused into a matrix product with the identity matrix, whose result is its input.
    finite = np.nan_to_num(x, nan=9.0, posinf=8.0, neginf=-8.0)
    problem = LinearProblem(10, 10, argmax=True)
    for row in variants("gemm"):
        if "float32" in row.dtypes and row.refusal_reason(problem, architecture()) is None:
            scores, labels = launch(kernel_of(Case(row, problem)), finite, [np.eye(10, dtype=np.float32), None])
            np.testing.assert_array_equal(scores.reshape(7, 10), finite)
            np.testing.assert_array_equal(labels, finite.argmax(axis=1))


@pytest.mark.parametrize("case", softmax_cases(), ids=str)
def test_a_fused_softmax_has_the_bits_of_the_softmax_kernel(case: Case) -> None:
    check_softmax_and_labels(case, lambda row, problem, *arrays: launch(kernel_of(Case(row, problem)), *arrays))


def test_relu_keeps_nan() -> None:
    x = np.array([[np.nan, -1.0, 0.0, 2.0, -np.inf, np.inf]], np.float32)
    (row,) = variants("activation")
    y = launch(kernel_of(Case(row, ActivationProblem(6, "relu"))), x, [])[0]
    np.testing.assert_array_equal(y, np.maximum(x[0], 0))


def test_bind_refuses_arrays_that_a_kernel_would_misread() -> None:
    import cupy

    (row,) = variants("activation")
    kernel = kernel_of(Case(row, ActivationProblem(8, "relu")))
    good = cupy.zeros(32, np.float32)
    kernel.bind([good, good.copy()], 4)
    for bad in (good.astype(np.float64), good[:31], good[::2], cupy.zeros(64, np.float32)[1:], None):
        with pytest.raises(ValueError, match="argument y"):
            kernel.bind([good, bad], 4)
    with pytest.raises(ValueError, match="takes 2 arrays"):
        kernel.bind([good], 4)
    with pytest.raises(ValueError, match="bound for 1 to 4"):
        kernel.bind([good, good.copy()], 4)(0, 5)
