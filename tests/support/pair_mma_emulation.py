"""What ``conv_pair_01_mma.cu`` makes of its packed parameters, in NumPy: operands laid out as a warp's registers are.

Sums are exact (float64); what is stored on the way is rounded as in the kernel.
"""

from collections.abc import Sequence

import numpy as np

from app.kernels.problems import ConvPairProblem

Array = np.ndarray


def pooled(x: Array) -> Array:
    """(images, rows, columns, maps): ReLU, then sums over 2 x 2 windows."""
    images, rows, columns, maps = x.shape
    return np.maximum(x, 0).reshape(images, rows // 2, 2, columns // 2, 2, maps).sum(axis=(2, 4))


def _a_operand(fragments: Array) -> Array:
    """(..., 32 lanes, 4 registers, 2) → (..., 16 rows, 16 columns), as mma.cuh says."""
    a = np.empty((*fragments.shape[:-3], 16, 16), fragments.dtype)
    for lane in range(32):
        for register in range(4):
            row, column = lane // 4 + register % 2 * 8, lane % 4 * 2 + register // 2 * 8
            a[..., row, column : column + 2] = fragments[..., lane, register, :]
    return a


def _b_operand(fragments: Array) -> Array:
    """(..., 32 lanes, 4 registers of two steps, 2) → (..., 32 rows, 8 columns)."""
    b = np.empty((*fragments.shape[:-3], 32, 8), fragments.dtype)
    for lane in range(32):
        for register in range(4):
            row = lane % 4 * 2 + register * 8
            b[..., row : row + 2, lane // 4] = fragments[..., lane, register, :]
    return b


def _tap(k: int) -> tuple[int, int]:
    """The pixel of a window that the kernel multiplies by row k of B: a pair of pixels is lane % 4 + 4 * register."""
    pair = min(k // 8 * 4 + k % 8 // 2, 14)
    return pair // 3, pair % 3 * 2 + k % 2


def _first(x: Array, filters: Array) -> Array:
    """(images, 28, 28) and (4 tiles, 32 lanes, 4, 2) → sums (images, 24, 24, 32)."""
    x = np.pad(x, ((0, 0), (0, 0), (0, 1)))
    b = np.moveaxis(_b_operand(filters), 0, 1).reshape(32, 32)  # rows; tiles side by side
    windows = np.stack([x[:, p : p + 24, q : q + 24] for p, q in map(_tap, range(32))], axis=-1)
    return windows @ b.astype(np.float64)


def _second(x: Array, filters: Array) -> Array:
    """(images, 12, 12, 32) and (passes, 50, tiles, 32 lanes, 4, 2) → sums (images, 8, 8, 64)."""
    a = np.moveaxis(_a_operand(filters), 1, 0).reshape(50, 64, 16).astype(np.float64)
    sums = np.zeros((len(x), 8, 8, 64))
    for step in range(50):
        row, column, channel = step // 10, step // 2 % 5, step % 2 * 16
        sums += x[:, row : row + 8, column : column + 8, channel : channel + 16] @ a[step].T
    return sums


def _halves(x: Array) -> tuple[Array, Array]:
    high = x.astype(np.float16).astype(np.float64)
    return high, (x - high).astype(np.float16).astype(np.float64)


def convolutions(problem: ConvPairProblem, x: Array, packed: Sequence[Array | None]) -> tuple[Array, float]:
    """(images, 28, 28) → features (images, 4, 4, 64), not yet stored, and the largest activation."""
    filters1, bias1, filters2, bias2, scales = packed
    assert filters1 is not None and filters2 is not None and scales is not None
    assert [filters1.dtype, filters2.dtype, scales.dtype] == [np.float16, np.float16, np.float32]
    parts, maps = (2, 32) if problem.dtype == "float16x2" else (1, 64)
    taps = filters1.reshape(parts, 4, 32, 4, 2)
    sums = sum(_first(x, part) for part in taps) + (0 if bias1 is None else bias1)
    activations = 2 * scales[0] * pooled(np.asarray(sums))
    steps = np.moveaxis(filters2.reshape(64 // maps, 50, parts, maps // 16, 32, 4, 2), 2, 0)
    high, low = _halves(activations)
    sums = _second(high, steps[0]) + (0 if bias2 is None else bias2)
    if parts == 2:
        sums = sums + _second(low, steps[0]) + _second(high, steps[1])
    return 2 * scales[1] * pooled(sums), float(activations.max())
