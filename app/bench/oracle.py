"""The float64 oracle on the card, and the one tolerance table that every kernel is held against.

It shares no code with the kernels: sums grow term by term in CuPy's element-wise arithmetic, which needs no library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import cupy
import numpy as np

from app.kernels.problems import (
    ActivationProblem,
    ArgmaxProblem,
    ConvProblem,
    LinearProblem,
    PoolProblem,
    Problem,
    SoftmaxProblem,
)

# Half a unit in the last place of a number near 1: what one rounding costs at most, relatively.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11}
COARSE = ("tfloat32", "float16")
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": lambda x: cupy.maximum(x, 0),
    "tanh": lambda x: cupy.tanh(x),
    "sigmoid": lambda x: 1 / (1 + cupy.exp(-x)),
}


def allowed(depth: int, dtype: str, plain: float) -> float:
    """The tolerance table: the greatest error of a result, relative to the sum of the magnitudes of its terms.

    float64, float32: ``4 + sqrt(depth)`` roundings; errors of sums of ``depth`` terms grow like a random walk.
    tfloat32, float16: twice ``plain``, the error of a plain implementation that rounds each operand (float16: each
    partial sum, too), and a float32 sum's tolerance on top.
    """
    exactness = ROUNDING["float32" if dtype in COARSE else dtype]
    return (4 + depth**0.5) * exactness + (2 * plain if dtype in COARSE else 0)


@dataclass(frozen=True)
class Expected:
    """What is right for some images, float64 on the device: values and how far results may be from them.

    labels: with an argmax only, the first best index; scores within ``tolerance`` of the best are as good.
    """

    values: cupy.ndarray
    tolerance: cupy.ndarray


def expected(
    problem: Problem, x: cupy.ndarray, w: cupy.ndarray | None = None, bias: cupy.ndarray | None = None
) -> Expected:
    """The oracle's results for x (images, elements) as stored, w and bias as in the problem's arguments.

    values: (images, elements an image), the scores that an argmax chooses from included.
    """
    match problem:
        case ConvProblem() | LinearProblem():
            assert w is not None
            return _sums(problem, x, w, bias)
        case PoolProblem():
            maps = x.astype(np.float64).reshape(-1, problem.channels, problem.height, problem.width)
            values, scale = (
                _pooled(v, problem.window, problem.stride, problem.is_max, problem.pooled) for v in (maps, abs(maps))
            )
            terms = 1 if problem.is_max else problem.window**2
            return _flat(values, allowed(terms, problem.dtype, 0) * scale, problem.dtype)
        case ActivationProblem():
            values = FUNCTIONS[problem.function](x.astype(np.float64))
            return _flat(values, 8 * ROUNDING[_sum_type(problem.dtype)] * (1 + abs(values)), problem.dtype)
        case SoftmaxProblem():
            rows = x.astype(np.float64)
            powers = cupy.exp(rows - rows.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
            # The exponent, x - max x, is rounded: its error, relative to 1, is that of the result relative to itself.
            error = ROUNDING[_sum_type(problem.dtype)] * (16 + 2 * abs(rows).max() + problem.classes)
            return _flat(values, error * values, problem.dtype)
        case ArgmaxProblem():
            values = x.astype(np.float64)
            return Expected(values, cupy.zeros_like(values))


def _sum_type(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _flat(values: cupy.ndarray, tolerance: cupy.ndarray, stored: str) -> Expected:
    """One row an image, with the rounding to the storage type allowed for."""
    subnormal = 2.0**-25 if stored == "float16" else 1e-37 if stored == "float32" else 0.0
    tolerance = tolerance + ROUNDING[stored] * abs(values) + subnormal
    return Expected(values.reshape(len(values), -1), tolerance.reshape(len(values), -1))


def _sums(
    problem: ConvProblem | LinearProblem, x: cupy.ndarray, w: cupy.ndarray, bias: cupy.ndarray | None
) -> Expected:
    shape = (problem.maps, *problem.convolved) if isinstance(problem, ConvProblem) else (problem.outputs,)
    exact, scale, plain = (cupy.zeros((len(x), *shape)) for _ in range(3))
    narrow = _rounder(problem.dtype)
    x, w = x.astype(np.float64), w.astype(np.float64)
    for a, b in _terms(problem, x, w):
        term = a * b
        exact += term
        scale += abs(term)
    if problem.dtype in COARSE:
        for a, b in _terms(problem, narrow(x), narrow(w)):
            plain += a * b
            if problem.dtype == "float16":
                plain = plain.astype(np.float16).astype(np.float64)
    depth = problem.depth if isinstance(problem, ConvProblem) else problem.inputs
    if bias is not None:
        per_map = bias.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        exact, plain, scale = exact + per_map, plain + per_map, scale + abs(per_map)
    function = FUNCTIONS[problem.activation]
    # tanh and sigmoid add an error of their own, of a few roundings of numbers below 1.
    own = 0.0 if problem.activation in ("", "relu") else 8 * ROUNDING[_sum_type(problem.dtype)]
    results = [function(exact), function(plain), scale]
    if isinstance(problem, ConvProblem) and problem.pool > 1:
        results = [_pooled(r, problem.pool, problem.pool, problem.pool_is_max, problem.pooled) for r in results]
    exact, plain, scale = results
    worst = 0.0
    if problem.dtype in COARSE:
        worst = float((abs(plain - exact) / cupy.maximum(scale, 1e-300)).max())
    return _flat(exact, allowed(depth, problem.dtype, worst) * scale + own, problem.output_dtype)


def _terms(
    problem: ConvProblem | LinearProblem, x: cupy.ndarray, w: cupy.ndarray
) -> Iterator[tuple[cupy.ndarray, cupy.ndarray]]:
    """The factors of each term of the sums, in the kernels' order, ready to broadcast."""
    if isinstance(problem, LinearProblem):
        w = w.reshape(problem.inputs, problem.outputs)
        for k in range(problem.inputs):
            yield x[:, k, None], w[k]
        return
    channels, height, width, maps, kernel, stride = problem.sizes
    x, w = x.reshape(-1, channels, height, width), w.reshape(channels, kernel, kernel, maps)
    down, across = ((size - 1) * stride + 1 for size in problem.convolved)
    for c in range(channels):
        for p in range(kernel):
            for q in range(kernel):
                yield x[:, None, c, p : p + down : stride, q : q + across : stride], w[c, p, q][:, None, None]


def _rounder(dtype: str) -> Callable[[cupy.ndarray], cupy.ndarray]:
    """float64 → float64 with the significant bits that the arithmetic keeps of its operands."""
    if dtype == "float16":
        return lambda x: x.astype(np.float16).astype(np.float64)
    if dtype == "tfloat32":
        return lambda x: _to_tf32(x.astype(np.float32)).astype(np.float64)
    return lambda x: x


def _to_tf32(x: cupy.ndarray) -> cupy.ndarray:
    bits = cupy.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _pooled(x: cupy.ndarray, window: int, stride: int, is_max: bool, size: tuple[int, int]) -> cupy.ndarray:
    """(images, C, H, W) → (images, C, *size)."""
    down, across = ((length - 1) * stride + 1 for length in size)
    result = None
    for p in range(window):
        for q in range(window):
            part = x[:, :, p : p + down : stride, q : q + across : stride]
            result = part if result is None else cupy.maximum(result, part) if is_max else result + part
    assert result is not None
    return result if is_max else result / window**2


def images_at_once(problem: Problem, budget: int = 64 << 20) -> int:
    """For how many images the oracle's arrays of float64 stay within ``budget`` bytes each; at least one."""
    sizes = [argument.per_image for argument in problem.arguments()]
    if isinstance(problem, ConvProblem):
        sizes.append(problem.maps * prod(problem.convolved))
    return max(budget // (8 * max(sizes)), 1)
