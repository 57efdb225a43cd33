"""The float64 oracle on the card: what a kernel must return. How far it may be from that: tolerance.py.

It shares no code with the kernels: sums grow term by term in CuPy's element-wise arithmetic, which needs no library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import cupy
import numpy as np

from app.bench.tolerance import Expected, is_coarse
from app.kernels.problems import (
    ActivationProblem,
    ArgmaxProblem,
    ConvProblem,
    LinearProblem,
    PoolProblem,
    Problem,
    SoftmaxProblem,
)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": lambda x: cupy.maximum(x, 0),
    "tanh": lambda x: cupy.tanh(x),
    "sigmoid": lambda x: 1 / (1 + cupy.exp(-x)),
}


def expected(
    problem: Problem, x: cupy.ndarray, w: cupy.ndarray | None = None, bias: cupy.ndarray | None = None
) -> Expected:
    """The oracle's results for x (images, elements) as stored, w and bias as in the problem's arguments.

    (images, elements an image), float64; the scores that an argmax chooses from included.
    """
    match problem:
        case ConvProblem() | LinearProblem():
            assert w is not None
            found = _sums(problem, x, w, bias)
        case PoolProblem():
            maps = x.astype(np.float64).reshape(-1, problem.channels, problem.height, problem.width)
            found = [
                _pooled(v, problem.window, problem.stride, problem.is_max, problem.pooled) for v in (maps, abs(maps))
            ]
        case ActivationProblem():
            values = FUNCTIONS[problem.function](x.astype(np.float64))
            found = [values, abs(values)]
        case SoftmaxProblem():
            rows = x.astype(np.float64)
            most = rows.max(axis=1, keepdims=True)
            powers = cupy.exp(rows - most)
            values = powers / powers.sum(axis=1, keepdims=True)
            # The exponent, x - max x, is rounded: its error, relative to 1, is that of the result relative to itself.
            found = [values, values * (1 + most - rows.min(axis=1, keepdims=True))]
        case ArgmaxProblem():
            values = x.astype(np.float64)
            found = [values, abs(values)]
    return Expected(*(array.reshape(len(x), -1) for array in found))


def _sums(
    problem: ConvProblem | LinearProblem, x: cupy.ndarray, w: cupy.ndarray, bias: cupy.ndarray | None
) -> list[cupy.ndarray]:
    """Exact values and magnitudes; where operands are rounded also plain ones, in float16 with rounded sums."""
    shape = (problem.maps, *problem.convolved) if isinstance(problem, ConvProblem) else (problem.outputs,)
    exact, magnitude = (cupy.zeros((len(x), *shape)) for _ in range(2))
    x, w = x.astype(np.float64), w.astype(np.float64)
    for a, b in _terms(problem, x, w):
        term = a * b
        exact += term
        magnitude += abs(term)
    sums = [exact]
    if is_coarse(problem):
        rounded, narrow = cupy.zeros_like(exact), _rounder(problem.dtype)
        for a, b in _terms(problem, narrow(x), narrow(w)):
            rounded += a * b
            if problem.dtype == "float16":
                rounded = rounded.astype(np.float16).astype(np.float64)
        sums.append(rounded)
    if bias is not None:
        per_map = bias.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        sums, magnitude = [y + per_map for y in sums], magnitude + abs(per_map)
    function = FUNCTIONS[problem.activation]
    exact, *plain = (function(y) for y in sums)
    results = [exact, magnitude, *plain]
    if isinstance(problem, ConvProblem) and problem.pool > 1:
        results = [_pooled(y, problem.pool, problem.pool, problem.pool_is_max, problem.pooled) for y in results]
    return results


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
