"""Test kernels on large batches, each element on the GPU: the networks' layers, and arrays of over 2**31 elements."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import ConvProblem, LinearProblem, PlainProblem, PoolProblem, Problem
from app.kernels.registry import variants
from app.lab.bench import oracle
from app.lab.bench.oracle import random_parameters
from app.lab.bench.tolerance import Expected, has_rounded_operands, has_split_operands
from tests.support.convolutions import network_convolutions
from tests.support.kernel_cases import OPERATIONS, Case, elements, on_a_card, served
from tests.support.kernel_device import compile_selected, device_parameters, host_arrays, kernel_of, on_card
from tests.support.kernel_grid import NETWORK_PAIRS, convolution_pair, exactly, exists_in, multiplied, product_pair
from tests.support.kernel_oracle import check, operands, sums_half, to_half, to_tf32

pytestmark = pytest.mark.gpu
IMAGES = 1013
LAYERS: dict[str, list[Problem]] = {
    "conv": [
        *network_convolutions(fused=False),
        *(problem for problem in network_convolutions(fused=True) if problem.pool > 1),
    ],
    "gemm": [
        LinearProblem(1024, 128, activation="relu"),
        LinearProblem(20_184, 160, bias=True, activation="tanh"),
        LinearProblem(160, 10, bias=True, argmax=True),
    ],
}
# Each reads or writes more elements than an int can count. The images repeat, so a few determine all results.
REPEATS = 40
MANY = 2**31
HUGE: dict[str, list[Problem]] = {
    "conv": [ConvProblem(8, 1000, 1000, 8, 1, input_dtype="uint8", output_dtype="float16")],
    "gemm": [
        LinearProblem(1024, 8, input_dtype="uint8", output_dtype="float16"),
        LinearProblem(8, 1024, bias=True, input_dtype="uint8", output_dtype="float16"),
        LinearProblem(1024, 8, input_dtype="float16", output_dtype="float16"),
        LinearProblem(8, 1024, bias=True, input_dtype="float16", output_dtype="float16"),
    ],
    "conv_pair": [convolution_pair(), exactly(convolution_pair()), NETWORK_PAIRS[-1]],
    "gemm_pair": [product_pair(1024, 128, 10)],
    "pool": [PoolProblem(8, 1000, 1000, 2, 1, False, "float16")],
    "resize": [ResizeProblem(8, 500, 500, 1024)],
    "activation": [ActivationProblem(8_000_000, "relu", "float16")],
    "softmax": [SoftmaxProblem(1000, "float16")],
    "argmax": [ArgmaxProblem(250, "float16")],
}


def _layer_cases() -> list[Case]:
    """Return the cases of LAYERS, those with equal expected results one after another."""
    found = [
        (at, sums_half(row), case)
        for name, problems in LAYERS.items()
        for row in variants(name)
        for at, problem in enumerate(problems)
        for case in served(row, [problem])
    ]
    found.sort(key=lambda entry: (entry[2].row.operation, entry[0], entry[2].problem.dtype, entry[1]))
    return [case for _, _, case in found]


def _huge_cases() -> list[Case]:
    cases = [
        Case(row, problem if isinstance(problem, PlainProblem) else multiplied(problem, row.dtypes[0]))
        for name in OPERATIONS
        for row in variants(name)
        for problem in HUGE[name]
        if exists_in(problem, row.dtypes[0])
    ]
    return [case for case in cases if case.refusal is None]


@pytest.fixture(scope="module", autouse=True)
def compile_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile all kernels of the selected tests at once; in the end, free the results cached on the GPU."""
    compile_selected(request)
    yield
    _expected_results.cache_clear()
    _repeat_random_images.cache_clear()


def _oracle_results(problem: ConvProblem | LinearProblem, x: np.ndarray, arrays: list[np.ndarray | None]) -> Expected:
    """Return what the benchmark's oracle, which runs on the GPU, expects for these operands."""
    import cupy

    device = [None if array is None else cupy.asarray(array) for array in arrays]
    return oracle.expected_results(problem, cupy.asarray(x.reshape(len(x), -1)), *device)


@lru_cache(maxsize=1)
def _expected_results(problem: ConvProblem | LinearProblem, in_half: bool) -> Expected:
    x, given = operands(problem, IMAGES)
    weights, bias = arrays = device_parameters(problem, given)
    assert weights is not None
    in_float64 = replace(problem, dtype="float64")
    found = _oracle_results(in_float64, x, arrays)
    if has_split_operands(problem) or in_half:  # each partial sum is rounded
        return replace(found, plain=_oracle_results(problem, x, arrays).plain)
    if not has_rounded_operands(problem):
        return found
    narrow = to_half if problem.dtype == "float16" else to_tf32
    return replace(found, plain=_oracle_results(in_float64, narrow(x), [narrow(weights), bias]).exact)


def _apply_row_bound(case: Case, wanted: Expected) -> Expected:
    """Return ``wanted`` with the error bound of the case's row, if it has one."""
    import cupy

    x, given = operands(case.problem, IMAGES)
    device = [None if array is None else cupy.asarray(array) for array in device_parameters(case.problem, given)]
    return oracle.apply_variant_error_bound(case.row, case.problem, wanted, cupy.asarray(x), *device)


@pytest.mark.parametrize("case", on_a_card(_layer_cases), ids=str)
def test_layers_of_the_networks(case: Case) -> None:
    from app.cuda.memory import upload

    problem = case.problem
    assert isinstance(problem, ConvProblem | LinearProblem)
    x, arrays = host_arrays(problem, IMAGES)
    y, *labels = on_card(kernel_of(case), upload(x), arrays, IMAGES)
    wanted = _expected_results(replace(problem, output_dtype="float32"), sums_half(case.row))
    check(y, problem, _apply_row_bound(case, wanted))
    if labels:
        np.testing.assert_array_equal(labels[0].get(), y.reshape(IMAGES, -1).argmax(axis=1).get())


@lru_cache(maxsize=1)
def _repeat_random_images(per_image: int, dtype: str, repeated: int) -> tuple[Any, Any]:
    """Return random values for ``repeated`` images, and these values REPEATS times in a row; flat, on the GPU."""
    from cupy.cuda import runtime

    from app.cuda.memory import device_array, upload

    rng = np.random.default_rng(per_image)
    block = rng.integers(0, 255, repeated * per_image, dtype=np.uint8)  # no byte that outputs are poisoned with
    few = upload(block if dtype == "uint8" else (block.astype(np.float32) / 64 - 2).astype(dtype))
    many = device_array(REPEATS * few.size, dtype)
    for start in range(0, many.nbytes, few.nbytes):
        runtime.memcpy(many.data.ptr + start, few.data.ptr, few.nbytes, runtime.memcpyDeviceToDevice)
    return few, many


@pytest.mark.alone
@pytest.mark.parametrize("case", _huge_cases(), ids=str)
def test_more_elements_than_an_int_counts(case: Case) -> None:
    """A batch of over 2**31 elements repeats a small one; each repetition must give the small batch's bits."""
    import cupy

    problem = case.problem
    if cupy.cuda.runtime.memGetInfo()[1] < 30 << 30:
        pytest.skip("needs a card with 30 GB of memory")
    _expected_results.cache_clear()
    cupy.get_default_memory_pool().free_all_blocks()
    argument = problem.arguments()[0]
    repeated = -(-MANY // (REPEATS * max(argument.per_image, elements(problem)))) + 1
    few, many = _repeat_random_images(argument.per_image, argument.dtype, repeated)
    arrays = random_parameters(np.random.default_rng(1), problem)
    kernel = kernel_of(case)
    wanted = on_card(kernel, few, arrays, repeated)[0]
    y = on_card(kernel, many, arrays, REPEATS * repeated)[0].reshape(REPEATS, -1)
    unsigned = f"u{y.itemsize}"
    assert len(set(wanted[:1000].get().view(unsigned).tolist())) > 1, "all results are the same"
    wanted = wanted.view(unsigned)
    assert bool((wanted != np.iinfo(unsigned).max).all()), "elements were never written"
    for at, part in enumerate(y.view(unsigned)):
        assert bool((part == wanted).all()), f"{case}: repetition {at} differs from the first"
