"""Pack the parameters of two matrix products for ``gemm_pair_02_wgmma.cu``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.kernels.fused.packing import LOW_SCALE, as_float32, split
from app.kernels.fused.scaling import balance_products
from app.kernels.problems import LinearPairProblem

DEPTH = {"float16": 128, "float16x2": 64}  # terms of the first sum at a time
CLASSES = 16  # rows of the second product


def pack_for_wgmma(problem: LinearPairProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """(w1, bias1, w2, bias2) → the same with w1 as float16 core matrices and w2 as fragments of float32.

    Both matrices are the sum of a high and a low part, w1 in float16x2 alone.
    """
    w1, bias1, w2 = balance_products(problem, arrays)
    parts = split(w1, LOW_SCALE) if problem.dtype == "float16x2" else (w1.astype(np.float16),)
    matrices = np.stack([core_matrices(part, DEPTH[problem.dtype]) for part in parts], axis=1)
    fragments = np.stack([class_fragments(part) for part in split_tf32(w2.astype(np.float32))])
    return [matrices.reshape(-1), as_float32(bias1), fragments.reshape(-1), as_float32(arrays[3])]


def core_matrices(weights: np.ndarray, depth: int) -> np.ndarray:
    """(inputs, hidden) → (inputs / depth, depth / 8, hidden, 8 inputs): wgmma's A from shared memory."""
    inputs, hidden = weights.shape
    planes = weights.reshape(inputs // depth, depth // 8, 8, hidden)
    return np.ascontiguousarray(planes.transpose(0, 1, 3, 2))


def split_tf32(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split float32 into (high, low), both rounded to 11 significant bits; low is the remainder of finite numbers."""
    high = _rounded(values)
    return high, _rounded(np.subtract(values, high, out=np.zeros_like(high), where=np.isfinite(high)))


def _rounded(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def class_fragments(weights: np.ndarray) -> np.ndarray:
    """(hidden, classes) → (hidden / 8, 32 lanes, 4 registers): mma_tf32's A, a class a row, zeros below them.

    Lane 4 g + t has class g, then g + 8, of hidden value t, then the same of t + 4.
    """
    hidden, classes = weights.shape
    padded = np.zeros((hidden, CLASSES), np.float32)
    padded[:, :classes] = weights
    parts = padded.reshape(hidden // 8, 2, 4, 2, 8)  # step, half of k, t, half of the classes, g
    return np.ascontiguousarray(parts.transpose(0, 4, 2, 1, 3)).reshape(hidden // 8, 32, 4)
