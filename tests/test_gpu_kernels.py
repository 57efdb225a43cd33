"""Every kernel in the registry against the layers' NumPy references, element by element, on the card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.kernels.problems import ArgmaxProblem, ConvProblem, LinearProblem, PoolProblem, Problem, ReluProblem
from app.kernels.registry import VARIANTS, Variant
from app.layers import Argmax, AvgPool, Conv2d, Layer, Linear, MaxPool, Relu

pytestmark = pytest.mark.gpu
GUARD = 64  # elements behind an output that no kernel may touch

CONVS = [
    ConvProblem(1, 28, 28, 32, 5, relu=True, pool=2, input_dtype="uint8"),
    ConvProblem(32, 12, 12, 64, 5, relu=True, pool=2),
    ConvProblem(32, 12, 12, 64, 5),
    ConvProblem(1, 28, 28, 32, 5, bias=True),
    ConvProblem(3, 11, 13, 5, 3, 2, bias=True, relu=True),
    ConvProblem(2, 9, 7, 17, 1, 3),
    ConvProblem(5, 15, 22, 70, 7, 1, bias=True, relu=True, pool=2, pool_is_max=True),
    ConvProblem(4, 10, 10, 33, 4, 3, relu=True),
    ConvProblem(1, 6, 6, 1, 6, bias=True, input_dtype="uint8"),
]
LINEARS = [
    LinearProblem(1024, 128, relu=True),
    LinearProblem(128, 10, argmax=True),
    LinearProblem(37, 19, bias=True, relu=True),
    LinearProblem(1, 1, bias=True),
    LinearProblem(45, 32, bias=True, argmax=True, input_dtype="uint8"),
    LinearProblem(300, 257),
]
OTHERS: list[tuple[str, list[Any]]] = [
    (
        "pool",
        [PoolProblem(32, 24, 24, 2, 2, False), PoolProblem(3, 7, 9, 3, 2, True), PoolProblem(5, 4, 9, 4, 4, True)],
    ),
    ("pool", [PoolProblem(2, 11, 8, 3, 3, False), PoolProblem(1, 5, 5, 2, 1, True)]),
    ("relu", [ReluProblem(1), ReluProblem(4608)]),
    ("argmax", [ArgmaxProblem(1), ArgmaxProblem(10), ArgmaxProblem(256)]),
]
PROBLEMS: list[tuple[str, Problem]] = [
    *(("conv", problem) for problem in CONVS),
    *(("gemm", problem) for problem in LINEARS),
    *((operation, problem) for operation, problems in OTHERS for problem in problems),
]


def cases() -> list[Any]:
    """Every row with every problem and element type that it serves."""
    from dataclasses import replace

    found: list[Any] = []
    for row in VARIANTS:
        for operation, problem in PROBLEMS:
            for dtype in row.dtypes:
                typed = replace(problem, dtype=dtype)
                if isinstance(typed, ConvProblem | LinearProblem) and typed.input_dtype != "uint8":
                    typed = replace(typed, input_dtype=dtype)
                if operation == row.operation and row.refusal(typed, "sm_90a") is None:
                    found.append(pytest.param(row, typed, id=f"{row.source}-{len(found)}"))
    return found


def layers_of(problem: Problem) -> list[Layer]:
    """The layers whose references define what the problem's kernels must return."""
    if isinstance(problem, ConvProblem):
        pool = (MaxPool if problem.pool_is_max else AvgPool)("pool", problem.pool)
        conv = Conv2d("layer", problem.maps, problem.kernel, problem.stride)
        return [conv, *([Relu("relu")] if problem.relu else []), *([pool] if problem.pool > 1 else [])]
    if isinstance(problem, LinearProblem):
        linear = Linear("layer", problem.outputs)
        return [linear, *([Relu("relu")] if problem.relu else [])]
    if isinstance(problem, PoolProblem):
        return [(MaxPool if problem.is_max else AvgPool)("pool", problem.window, problem.stride)]
    return [Relu("relu")] if isinstance(problem, ReluProblem) else [Argmax("argmax")]


def input_shape(problem: Problem) -> tuple[int, ...]:
    """Shape of one image's input."""
    if isinstance(problem, ConvProblem | PoolProblem):
        return problem.channels, problem.height, problem.width
    return (problem.arguments()[0].per_image,)


def inputs(problem: Problem, images: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Fresh random input, (images, *shape), and parameters in the weights file's layout."""
    rng = np.random.default_rng(seed)
    first = problem.arguments()[0]
    shape = (images, *input_shape(problem))
    x = rng.integers(0, 256, shape).astype(np.uint8) if first.dtype == "uint8" else rng.standard_normal(shape)
    layer = layers_of(problem)[0]
    wanted = layer.parameter_shapes(shape[1:])
    parameters = {
        name: rng.standard_normal(size).astype(problem.dtype)
        for name, size in wanted.items()
        if not name.endswith("_bias") or getattr(problem, "bias", False)
    }
    return x.astype(first.dtype), parameters


def launch(row: Variant, problem: Problem, x: np.ndarray, parameters: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run the kernel on poisoned outputs; returns them flat, after checking that the guards are untouched."""
    import cupy

    from app.device import describe_gpu
    from app.kernels.launch import Kernel

    layer = layers_of(problem)[0]
    device_parameters = layer.device_parameters(x.shape[1:], parameters, scale=1.0, flattened=None)
    arrays: list[Any] = [cupy.asarray(x)]
    arrays += [
        None if p is None else cupy.asarray(np.ascontiguousarray(p, dtype=problem.dtype)) for p in device_parameters
    ]
    outputs = []
    for argument in problem.arguments()[len(arrays) :]:
        poison = 0xAB if argument.dtype == "uint8" else np.nan
        outputs.append(cupy.full(argument.per_image * len(x) + GUARD, poison, argument.dtype))
    kernel = Kernel(row, problem, describe_gpu()["architecture"])
    kernel.bind([*arrays, *outputs], len(x))(cupy.cuda.get_current_stream().ptr, len(x))
    results = []
    for output in outputs:
        host = cupy.asnumpy(output)
        guard = host[-GUARD:]
        assert (guard == 0xAB).all() if host.dtype == np.uint8 else np.isnan(guard).all(), "wrote behind its output"
        results.append(host[:-GUARD])
    return results


def reference(problem: Problem, x: np.ndarray, parameters: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The float64 reference, flat, and a bound on the rounding error of each element.

    A sum of n products errs by at most about n roundings of the sum of magnitudes; pooling averages bounds, and
    a few roundings more cover bias, division and the epilogue.
    """
    layers = layers_of(problem)
    y = x.astype(np.float64)
    magnitude = np.abs(y)
    magnitudes = {name: np.abs(value) for name, value in parameters.items()}
    for layer in layers:
        y = layer.reference(y, parameters)
        magnitude = layer.reference(magnitude, magnitudes)
    depth = getattr(problem, "inputs", 0) or getattr(problem, "channels", 1) * getattr(problem, "kernel", 1) ** 2
    unit = np.finfo(problem.dtype).eps / 2
    return np.ascontiguousarray(y).ravel(), (depth + 16) * unit * np.ascontiguousarray(magnitude).ravel()


@pytest.mark.parametrize(("row", "problem"), cases())
@pytest.mark.parametrize("images", [1, 5, 67])
def test_kernel_equals_the_reference(row: Variant, problem: Problem, images: int) -> None:
    x, parameters = inputs(problem, images, seed=images)
    results = launch(row, problem, x, parameters)
    if isinstance(problem, ArgmaxProblem):
        np.testing.assert_array_equal(results[0], x.argmax(axis=1))
        return
    expected, bound = reference(problem, x, parameters)
    error = np.abs(results[0].astype(np.float64) - expected)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error - bound)))
    # Written so that NaN, an element never written, fails.
    assert (error <= bound).all(), f"element {worst}: {results[0][worst]} instead of {expected[worst]}"
    if isinstance(problem, LinearProblem) and problem.argmax:
        np.testing.assert_array_equal(results[1], results[0].reshape(images, -1).argmax(axis=1))


@pytest.mark.parametrize("problem", CONVS)
def test_all_convolutions_agree_to_the_bit(problem: ConvProblem) -> None:
    """Every float32 variant sums in the same order, so pooled and unpooled, all give the same bits."""
    x, parameters = inputs(problem, 6, seed=3)
    rows = [row for row in VARIANTS if row.operation == "conv" and row.refusal(problem, "sm_90a") is None]
    outputs = [launch(row, problem, x, parameters)[0] for row in rows]
    for output in outputs[1:]:
        np.testing.assert_array_equal(output.view(np.uint32), outputs[0].view(np.uint32))


def test_argmax_ties_and_nan_follow_numpy() -> None:
    """The first among equals wins, NaN beats every number, infinities compare."""
    rows = [row for row in VARIANTS if row.operation == "argmax"]
    x = np.zeros((7, 10), np.float32)
    x[1, [3, 7]] = 5
    x[2, [4, 6]] = np.nan
    x[3] = -np.inf
    x[4, 9] = np.inf
    x[5] = np.arange(10)[::-1]
    x[6, 9] = np.nan
    for row in rows:
        np.testing.assert_array_equal(launch(row, ArgmaxProblem(10), x, {})[0], x.argmax(axis=1))
    # Fused into a matrix product with the identity, which hands its input on.
    finite = np.nan_to_num(x, nan=9.0, posinf=8.0, neginf=-8.0)
    problem = LinearProblem(10, 10, argmax=True)
    for row in [r for r in VARIANTS if r.operation == "gemm" and r.refusal(problem, "sm_90a") is None]:
        scores, labels = launch(row, problem, finite, {"layer": np.eye(10, dtype=np.float32)})
        np.testing.assert_array_equal(scores.reshape(7, 10), finite)
        np.testing.assert_array_equal(labels, finite.argmax(axis=1))


def test_relu_keeps_nan() -> None:
    x = np.array([[np.nan, -1.0, 0.0, 2.0, -np.inf, np.inf]], np.float32)
    row = next(row for row in VARIANTS if row.operation == "relu")
    np.testing.assert_array_equal(launch(row, ReluProblem(6), x, {})[0], np.maximum(x[0], 0))


def test_the_gate_refuses_what_a_kernel_would_misread() -> None:
    import cupy

    from app.device import describe_gpu
    from app.kernels.launch import Kernel

    row = next(row for row in VARIANTS if row.operation == "relu")
    kernel = Kernel(row, ReluProblem(8), describe_gpu()["architecture"])
    good = cupy.zeros(32, np.float32)
    kernel.bind([good, good.copy()], 4)
    for bad in (good.astype(np.float64), good[:31], good[::2], cupy.zeros(64, np.float32)[1:], None):
        with pytest.raises(ValueError, match="argument y"):
            kernel.bind([good, bad], 4)
    with pytest.raises(ValueError, match="takes 2 arrays"):
        kernel.bind([good], 4)
    with pytest.raises(ValueError, match="bound for 1 to 4"):
        kernel.bind([good, good.copy()], 4)(0, 5)
