"""What the pair kernel of 8-bit integers makes of its packed parameters, in NumPy: to the bit but for conv1's sums.

A card rounds those in its own way; where they lie near the middle of two bytes, it may take the other one.
"""

import numpy as np

from tests.support.pair_emulation import Packed, first_sums, half, in_place, staged

BYTES = 16  # of a pixel or a filter in a core matrix's row
ROW, PLANE = 12 * BYTES, 12 * 12 * BYTES  # of pooled maps


def operand(memory: np.ndarray, start: int, next_k: int, next_rows: int, count: int) -> np.ndarray:
    """(32, count): what wgmma reads there of bytes, core matrices of eight rows x 16 bytes along k."""
    k, row = np.arange(32)[:, None], np.arange(count)
    return memory[start + k // BYTES * next_k + row // 8 * next_rows + row % 8 * BYTES + k % BYTES]


def bytes_between(filters: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Packed first filters and (images, 28, 28) bytes → (images, 32, 12, 12) bytes, as int64."""
    pooled = []
    for image in images:
        sums = first_sums(filters.astype(np.float64).reshape(2, 3, 128, 4, 2), staged(image.astype(np.float64)), half)
        activations = np.maximum(sums, 0).reshape(2, 2, 4, 2, 8, 72)  # odd, lower, w, h, g
        rows = half(activations[:, :, :, 0] + activations[:, :, :, 1])
        sum_of_four = np.minimum(half(rows[:, 0] + rows[:, 1]), 1)
        pooled.append(in_place(np.rint(sum_of_four * 255)))
    return np.stack(pooled).astype(np.int64)


def integer_sums(filters: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Packed second filters and (images, 32, 12, 12) bytes → (64, 8, images, 8)."""
    images = len(pooled)
    # [16 channels][row][image][column][channel]
    memory = np.ascontiguousarray(pooled.reshape(images, 2, 16, 12, 12).transpose(1, 3, 0, 4, 2)).ravel()
    words, sums = filters.astype(np.int64), np.zeros((64, 64 * images), np.int64)
    for tap in range(25):
        a = operand(words, tap * 2048, 1024, 128, 64)
        at = tap // 5 * images * ROW + tap % 5 * BYTES
        sums += a.T @ operand(memory, at, PLANE * images, ROW, 64 * images)
    assert np.abs(sums).max() < 2**31
    return sums.reshape(64, 8, images, 8)


def integer_convolutions(packed: Packed, images: np.ndarray) -> np.ndarray:
    """What the kernel writes for (images, 28, 28) bytes, before it stores: flat features."""
    filters1, filters2, scales = packed
    assert filters1 is not None and filters2 is not None and scales is not None
    assert [filters1.dtype, filters2.dtype, scales.dtype] == [np.float16, np.int8, np.float32]
    sums = integer_sums(filters2, bytes_between(filters1, images))
    windows = np.maximum(sums, 0).reshape(64, 4, 2, len(images), 4, 2).sum(axis=(2, 5))  # map, row, image, column
    return (windows * scales[:, None, None, None].astype(np.float64)).transpose(2, 0, 1, 3).ravel()
