"""What the kernel of any two convolutions makes of its packed parameters, in NumPy: operands are read as it reads them.

Sums are exact (float64); what is stored on the way is rounded as in the kernel. Memory that it leaves as it was holds
NaN here, so that a product of it with zero shows.
"""

from collections.abc import Callable

import numpy as np

from app.kernels.problems import ConvPairProblem, ConvProblem
from app.layers import ACTIVATIONS, AvgPool, MaxPool, Resize
from tests.support.pair_emulation import Packed, both_halves, half

G, T = np.arange(32) // 4, np.arange(32) % 4  # lane = 4 g + t
SLACK = 8  # words behind the last row


def matrix(fragments: np.ndarray) -> np.ndarray:
    """(steps, columns, 32 lanes, 2 registers, 2) → (16 steps, 8 columns): B of mma, as the lanes hold it."""
    steps, columns = fragments.shape[:2]
    b = np.full((steps, 16, columns, 8), np.nan)
    for register, pair in np.ndindex(2, 2):
        b[:, 8 * register + 2 * T + pair, :, G] = np.moveaxis(fragments[:, :, :, register, pair], 2, 0)
    return b.reshape(16 * steps, 8 * columns)


def places(problem: ConvProblem, row: int, column: int) -> np.ndarray:
    """Where each result's window begins, given the distances of rows and of columns: (results)."""
    down, across = (np.arange(size) * problem.stride for size in problem.convolved)
    return (down[:, None] * row + across * column).ravel()


def finished(problem: ConvProblem, values: np.ndarray) -> np.ndarray:
    """Pool (results, maps): (maps, PH, PW)."""
    maps = values.T.reshape(1, values.shape[1], *problem.convolved)
    if problem.pool > 1:
        kind = MaxPool if problem.pool_is_max else AvgPool
        maps = kind("", problem.pool, ceil=problem.pool_ceil).reference(maps, {})
    return maps[0]


def activation(problem: ConvProblem) -> Callable[[np.ndarray], np.ndarray]:
    """The activation, as a function."""
    function = problem.activation
    return (lambda x: ACTIVATIONS[function]("").reference(x, {})) if function else (lambda x: x)


def any_convolutions(problem: ConvPairProblem, packed: Packed, images: np.ndarray) -> np.ndarray:
    """What the kernel writes for (images, C, H, W) bytes, before it is stored: (images, features)."""
    filters1, factors1, bias1, filters2, factors2, bias2 = (
        None if array is None else array.astype(np.float64) for array in packed
    )
    assert filters1 is not None and filters2 is not None and factors1 is not None and factors2 is not None
    first, second = problem.first, problem.second
    if problem.resize is not None:
        images = Resize("", problem.resize.size, problem.resize.rule).reference(images, {})
    even = (first.maps + 1) // 2 * 2
    columns1, columns2 = -(-first.maps // 8), -(-second.maps // 8)
    parts1 = filters1.reshape(problem.weight_parts, -1, columns1, 32, 2, 2)
    parts2 = filters2.reshape(problem.weight_parts, second.kernel, -1, columns2, 32, 2, 2)

    # The first convolution: a step is two rows of windows, each eight pixels wide.
    margin = first.padding
    pixels = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    pitch, plane = pixels.shape[3], pixels.shape[2] * pixels.shape[3]
    memory = np.pad(pixels.reshape(len(images), -1), ((0, 0), (0, SLACK)))
    slots = [c * plane + p * pitch for c in range(first.channels) for p in range(first.kernel)]
    slots += [0] * (2 * parts1.shape[1] - len(slots))
    reads1 = places(first, pitch, 1)[:, None] + (np.array(slots)[:, None] + np.arange(8)).ravel()
    b1 = np.sum([matrix(part) for part in parts1], axis=0)[:, :even]

    # The second: a row of a window, pixel after pixel, in words of two maps.
    words = even // 2
    apart = second.stride * second.pool
    step = words + (0 if words % 8 else 4 if apart % 2 else 2 if apart % 4 else 1)
    high_, wide = (size + 2 * second.padding for size in first.pooled)
    steps = np.arange(parts2.shape[2])
    starts = 8 * steps + (8 * steps // words * (step - words) if words % 8 == 0 else 0)
    row = (2 * starts[:, None] + np.arange(16)).ravel()
    reads2 = places(second, 2 * wide * step, 2 * step)

    features = []
    for image in memory:
        bias = np.zeros(even) if bias1 is None else bias1
        values = activation(first)(image[reads1] @ b1 * factors1[:even] + bias)
        if len(factors1) > even:
            values = values * factors1[even:]
        maps = finished(first, values)
        memories = []
        for part in both_halves(maps) if problem.parts == 2 else (half(maps),):
            stored = np.full((high_, wide, 2 * step), 0.0 if second.padding else np.nan)
            inside = slice(second.padding, second.padding + part.shape[1])
            stored[inside, second.padding : second.padding + part.shape[2], :even] = part.transpose(1, 2, 0)
            memories.append(np.append(stored.ravel(), np.zeros(2 * SLACK)))
        sums = np.zeros((len(reads2), 8 * columns2))
        for p in range(second.kernel):
            operands = [stored[(reads2 + p * 2 * wide * step)[:, None] + row] for stored in memories]
            weights = [matrix(part[p]) for part in parts2]
            sums += sum(x @ weights[0] for x in operands)
            if problem.weight_parts == 2:
                sums += operands[0] @ weights[1]
        sums = sums[:, : second.maps] * factors2[: second.maps]
        sums += 0 if bias2 is None else bias2[: second.maps]
        features.append(finished(second, activation(second)(sums)).ravel())
    return np.stack(features)
