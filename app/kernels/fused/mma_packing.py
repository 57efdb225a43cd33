"""Pack the parameters of two convolutions for ``conv_pair_01_mma.cu``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.kernels.fused.packing import split
from app.kernels.fused.scaling import balance_convolutions, scale_for
from app.kernels.problems import ConvPairProblem


def pack_for_mma(problem: ConvPairProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """(w1, bias1, w2, bias2) → [filters1, bias1, filters2, bias2, scales].

    The first convolution's results are pooled as sums, not averages, of balanced activations; scales = (from twice the
    first sums to those, from twice the second sums to features).
    """
    bias2 = arrays[3]
    w1, bias1, w2 = balance_convolutions(problem, arrays)
    w1 = w1.reshape(problem.first.kernel, problem.first.kernel, -1)
    w2 = w2.reshape(-1, problem.second.kernel, problem.second.kernel, problem.second.maps)
    scale1, scale2 = 1.0, scale_for(w2, bias2)
    if problem.dtype == "float16":
        parts1, parts2 = [w1.astype(np.float16)], [(w2 * scale2).astype(np.float16)]
    else:
        scale1 = scale_for(w1)
        parts1, parts2 = list(split(w1 * scale1)), list(split(w2 * scale2))
    filters1 = np.stack([tap_fragments(part) for part in parts1])
    filters2 = np.stack([map_fragments(part, 32 if problem.dtype == "float16x2" else 64) for part in parts2], axis=2)
    sums2 = 4 * scale2  # the second sums' scale
    scales = np.array([0.5 / scale1, 0.5 * 0.25 / sums2], np.float32)
    return [filters1.reshape(-1), _scaled(bias1, scale1), filters2.reshape(-1), _scaled(bias2, sums2), scales]


def _scaled(bias: np.ndarray | None, scale: float) -> np.ndarray | None:
    return None if bias is None else (bias.astype(np.float64) * scale).astype(np.float32)


def tap_fragments(filters: np.ndarray) -> np.ndarray:
    """(5, 5, 32) → (4 tiles of 8 maps, 32 lanes, 4 words, 2): mma's B. Six taps a row, the last one zero.

    Lane 4 g + t has map g of a tile; its words are pairs of taps t, t + 4, t + 8 and t + 12 of 16, the last one zero.
    """
    taps = np.zeros((5, 6, 32), filters.dtype)
    taps[:, :5] = filters
    pairs = np.zeros((16, 2, 32), filters.dtype)
    pairs[:15] = taps.reshape(15, 2, 32)
    fragments = pairs.reshape(4, 4, 2, 4, 8)  # word, t, pair, tile, g
    return np.ascontiguousarray(fragments.transpose(3, 4, 1, 0, 2)).reshape(4, 32, 4, 2)


def map_fragments(filters: np.ndarray, maps: int) -> np.ndarray:
    """(32, 5, 5, 64) → (passes, 50 steps, tiles of 16 maps, 32 lanes, 4 registers, 2): mma's A.

    A step is one tap and 16 channels; a pass has ``maps`` of the maps.
    """
    # step, half of k, t, pair, tap | pass, tile, half of the rows, g
    parts = filters.reshape(2, 2, 4, 2, 25, 64 // maps, maps // 16, 2, 8)
    fragments = parts.transpose(5, 4, 0, 6, 8, 2, 1, 7, 3)
    return np.ascontiguousarray(fragments).reshape(64 // maps, 50, maps // 16, 32, 4, 2)
