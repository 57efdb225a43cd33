"""Pack the pair kernels' parameters in the order in which their tensor-core instructions read them. Pure.

Numbers are scaled by powers of two (scaling.py) so that float16 holds them; the kernels undo the scale at the end.
``split`` operands are the sum of two float16 (``high`` and ``low``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.kernels.fused.scaling import balance_convolutions, balance_products, scale_for
from app.kernels.problems import ConvPairProblem, LinearPairProblem

LOW_SCALE = 2048  # of the low halves in a matrix product


def split(values: np.ndarray, low_scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Split float64 into (high, low): the nearest float16, and the remainder times ``low_scale`` as float16."""
    high = values.astype(np.float16)
    return high, ((values - high) * low_scale).astype(np.float16)


def as_float32(bias: np.ndarray | None) -> np.ndarray | None:
    """Convert a bias, if there is one, to float32, the type in which it is added."""
    return None if bias is None else bias.astype(np.float32)


def pack_convolutions(problem: ConvPairProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """(w1, bias1, w2, bias2) → [filters1, filters2, scales], for the wgmma kernels. Biases must be None.

    The first convolution's results are pooled as sums, not averages, of balanced activations; scales = (from twice the
    first products to those sums, from twice the second products to features).
    """
    w1, _, w2 = balance_convolutions(problem, arrays)
    w1 = w1.reshape(problem.first.kernel, problem.first.kernel, -1)
    w2 = w2.reshape(-1, problem.second.kernel, problem.second.kernel, problem.second.maps)
    scale2 = scale_for(w2)
    average = 0.5 * 0.25**2 / scale2  # of twice the sums
    if problem.dtype == "float16":
        filters1 = window_fragments(w1.astype(np.float16))
        filters2 = core_matrices((w2 * scale2).astype(np.float16))
        scales = (1.0, average)  # these activations are not doubled
    else:
        scale1 = scale_for(w1)
        filters1 = np.stack([window_fragments(part) for part in split(w1 * scale1)])
        filters2 = np.stack([core_matrices(part) for part in split(w2 * scale2)], axis=1)
        scales = (0.5 / scale1, average)
    return [filters1.reshape(-1), filters2.reshape(-1), np.array(scales, np.float32)]


def window_fragments(filters: np.ndarray) -> np.ndarray:
    """(5, 5, 32) → (even and odd maps, 3 steps, 128 threads, 4 registers, 2): wgmma's A from registers.

    Row 16 w + 8 h + g of A is map 2 (4 w + g % 4) + odd, moved right by 2 (g // 4) + h columns in a window of eight;
    the 16 columns of a step are filter rows 0 and 2, 1 and 3, 4 and none.
    """
    rows = np.zeros((2, 6, 4, 2, 8, 8), filters.dtype)  # odd, filter row, w, h, g, column of the window
    for g in range(8):
        for h in range(2):
            moved = 2 * (g // 4) + h
            maps = filters[:, :, 2 * (g % 4) :: 8], filters[:, :, 2 * (g % 4) + 1 :: 8]  # of w = 0 to 3
            for odd in range(2):
                rows[odd, :5, :, h, g, moved : moved + 5] = maps[odd].transpose(0, 2, 1)
    steps = rows[:, [0, 2, 1, 3, 4, 5]].reshape(2, 3, 2, 4, 2, 8, 4, 2)  # odd, step, k half, w, h, g, t, pair
    return np.ascontiguousarray(steps.transpose(0, 1, 3, 5, 6, 2, 4, 7)).reshape(2, 3, 128, 4, 2)


def core_matrices(filters: np.ndarray) -> np.ndarray:
    """(32, 5, 5, 64) → (25 taps, 2 steps of channels, 2 halves of 8, 8 groups of maps, 8 maps, 8 channels)."""
    parts = filters.reshape(2, 2, 8, 25, 8, 8)  # step, half, channel, tap, group, map
    return np.ascontiguousarray(parts.transpose(3, 0, 1, 4, 5, 2))


def pack_products(problem: LinearPairProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """(w1, bias1, w2, bias2) → the same with w1 as fragments, float16, its low halves beside it where it is split."""
    w1, bias1, w2 = balance_products(problem, arrays)
    parts = np.stack(split(w1, LOW_SCALE) if problem.dtype == "float16x2" else [w1.astype(np.float16)])
    # part, step of 64, k of 16, half of 8, t, pair | 16 columns, left and right of 8, g
    words = parts.reshape(len(parts), -1, 4, 2, 4, 2, problem.first.outputs // 16, 2, 8)
    fragments = np.ascontiguousarray(words.transpose(1, 0, 2, 6, 8, 4, 7, 3, 5))
    return [fragments.reshape(-1), as_float32(bias1), w2.reshape(-1).astype(np.float32), as_float32(arrays[3])]
