"""Run kernels under test on the GPU: compile them in parallel first, and launch them on guarded, poisoned outputs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cuda.compiler import compile_kernel
from app.kernels.plain_problems import ArgmaxProblem, SoftmaxProblem
from app.kernels.problems import LinearProblem, PairProblem, Problem
from app.kernels.registry import variants
from app.planning.plan import ExecutionPlan
from tests.support.kernel_cases import Case, architecture, input_shape, served
from tests.support.kernel_oracle import layers_of, operands

if TYPE_CHECKING:  # needs CuPy
    from app.kernels.launch import Kernel

GUARD = 64  # elements behind an output that no kernel may touch
POISON = 0xFF  # in every byte: NaN in all float types, and no label
# A poisoned workspace shows reads of what was never written; initcheck wants to see them for itself.
POISON_WORKSPACE = not os.environ.get("LENET_NO_POOL")


def compile_all(cases: Iterable[Case]) -> None:
    """Compile the cases' kernels into the cache on all cores. A kernel that fails reports the error when it is used."""

    def compiled(case: Case) -> None:
        with suppress(RuntimeError):
            compile_kernel(case.row.path, _defines(case), architecture())

    distinct = [*{(case.row.source, repr(sorted(_defines(case).items()))): case for case in cases}.values()]
    random.Random(os.getpid()).shuffle(distinct)  # processes beside this one begin elsewhere, and share the work
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, distinct))


def cases_of(plans: Iterable[ExecutionPlan]) -> list[Case]:
    """Return the kernels of the plans as cases, with their settings."""
    return [Case(node.variant, node.problem, tuple(node.settings.items())) for found in plans for node in found.nodes]


def _defines(case: Case) -> dict[str, str | int]:
    return case.row.launch_config(case.problem, dict(case.parameters)).defines


def compile_selected(request: pytest.FixtureRequest) -> None:
    """Compile the kernels of all selected tests of the module that have a ``case``."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    used = [item.callspec.params.get("case") for item in items]
    compile_all(case for case in used if isinstance(case, Case))


def kernel_of(case: Case, *, debug: bool = False) -> Kernel:
    """Return the case's kernel, loaded on the GPU."""
    from app.kernels.launch import Kernel

    return Kernel(case.row, case.problem, architecture(), dict(case.parameters), debug=debug)


def host_arrays(problem: Problem, images: int) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Return random operands in the problem's layout: x, and the arguments between x and the outputs."""
    x, parameters = operands(problem, images)
    arguments = problem.arguments()
    arrays = device_parameters(problem, parameters)
    return x.astype(arguments[0].dtype), [
        None if array is None else np.ascontiguousarray(array, argument.dtype)
        for array, argument in zip(arrays, arguments[1:], strict=False)
    ]


def device_parameters(problem: Problem, parameters: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
    """Return the arguments between x and y in the problem's order and layout, float64."""
    shape = input_shape(problem.first if isinstance(problem, PairProblem) else problem)
    arrays: list[np.ndarray | None] = []
    for layer in layers_of(problem):
        arrays += layer.device_parameters(shape, parameters, scale=1.0, flattened=None)
        shape = layer.output_shape(shape)
    return arrays


def bind(kernel: Kernel, arrays: list[Any], images: int) -> Any:
    """Call ``Kernel.bind``; skip the test if a library is missing."""
    try:
        return kernel.bind(arrays, images)
    except UserError as missing:
        if not kernel.variant.needs_cublas:
            raise
        pytest.skip(str(missing))


def on_card(kernel: Kernel, x: Any, parameters: list[np.ndarray | None], images: int) -> list[Any]:
    """Run the kernel once on x in GPU memory and poisoned outputs; check the guards; return the flat outputs there."""
    import cupy

    from app.cuda.memory import device_array, upload

    arrays = [x, *(None if array is None else upload(array) for array in kernel.pack(parameters))]
    outputs = []
    for argument in kernel.arguments()[len(arrays) :]:
        outputs.append(device_array(argument.per_image * images + GUARD, argument.dtype))
        outputs[-1].data.memset(POISON, outputs[-1].nbytes)
    bound = bind(kernel, [*arrays, *outputs], images)
    if POISON_WORKSPACE:
        for scratch in bound.workspace:
            scratch.data.memset(POISON, scratch.nbytes)
    bound(cupy.cuda.Stream.null.ptr, images)
    cupy.cuda.Stream.null.synchronize()
    for output in outputs:
        behind = output[-GUARD:].get().view(np.uint8)
        assert (behind == POISON).all(), f"{kernel.variant.source} wrote behind its output"
    return [output[:-GUARD] for output in outputs]


def launch(kernel: Kernel, x: np.ndarray, parameters: list[np.ndarray | None]) -> list[np.ndarray]:
    """Run the kernel once on arrays of exactly the needed size; check the guards; return the flat outputs."""
    from app.cuda.memory import upload

    return [output.get() for output in on_card(kernel, upload(np.ascontiguousarray(x)), parameters, len(x))]


def results(case: Case, images: int, *, debug: bool = False) -> list[np.ndarray]:
    """Return the case's outputs for its random operands."""
    return launch(kernel_of(case, debug=debug), *host_arrays(case.problem, images))


def softmax_cases() -> list[Case]:
    """Return each product kernel that takes the softmax, in each of its types, for one class and up to 32."""
    drawn = [LinearProblem(40, n, bias=True, argmax=True, softmax=True) for n in (1, 7, 10, 16, 17, 32)]
    return [case for row in variants("gemm") for case in served(row, drawn)]


def check_softmax_and_labels(case: Case, run: Callable[..., list[np.ndarray]]) -> None:
    """Compare a fused softmax and argmax with the kernels of each alone, to the bit: ties, NaN, infinities, underflow.

    run: row, problem, x, parameters → flat outputs.
    """
    problem: Any = case.problem
    fused = replace(problem, output_dtype="float32")
    classes, rows = fused.outputs, 13
    x, arrays = host_arrays(fused, rows)
    for array in arrays:  # two equal columns
        assert array is not None
        array.reshape(-1, classes)[:, classes // 2] = array.reshape(-1, classes)[:, 0]
    x[1, 3], x[2, 3], x[3, 5], x[4] = np.nan, np.inf, -np.inf, 9000 * x[4]
    x[5] = 0
    y, labels = run(case.row, fused, x, arrays)
    (scores,) = run(case.row, replace(fused, argmax=False, softmax=False), x, arrays)
    (alone,) = run(variants("softmax")[0], SoftmaxProblem(classes), scores.reshape(rows, classes), [])
    (best,) = run(variants("argmax")[0], ArgmaxProblem(classes), alone.reshape(rows, classes), [])
    np.testing.assert_array_equal(y, alone)
    np.testing.assert_array_equal(labels, best)
    np.testing.assert_array_equal(labels, y.reshape(rows, classes).argmax(axis=1))
    nans = np.isnan(y.reshape(rows, classes))
    assert nans[1].all() and nans[2].all() and not nans[5:].any()
    assert classes < 7 or (np.unique(labels).size > 2 and (y == 0).any())


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bytes as integers, to compare bit by bit: zeros have signs, and NaN is not equal to itself."""
    return array.view(f"u{array.itemsize}")
