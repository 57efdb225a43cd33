"""What the pair kernels make of their packed parameters, in NumPy: operands are read from memory as the kernels do.

Sums are exact (float64), but for float16's first convolution by wgmma; what is stored on the way is rounded as in the
kernels. Memory that a kernel leaves as it was holds NaN here, so that a product of it with zero shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from app.kernels.fused.gemm_pair import CLASSES, DEPTH
from app.kernels.fused.scaling import LOW_SCALE
from app.kernels.gemm.warpgroup import DEPTH as STEP
from app.kernels.gemm.warpgroup import tile_of
from app.kernels.problems import ConvPairProblem, LinearPairProblem, LinearProblem
from app.kernels.variant import tiles
from app.layers import ACTIVATIONS, Softmax

Packed = Sequence[np.ndarray | None]
G, T = np.arange(32) // 4, np.arange(32) % 4  # lane = 4 g + t
WINDOW_ROW, WINDOW_HALF = 6 * 8, 15 * 6 * 8  # of staged images, in numbers
ROW, PLANE = 12 * 8, 12 * 12 * 8  # of pooled maps


def half(x: np.ndarray) -> np.ndarray:
    """Rounded to float16."""
    return x.astype(np.float16).astype(np.float64)


def twice_relu(x: np.ndarray) -> np.ndarray:
    """2 max(x, 0), as the kernels have it."""
    return x + np.abs(x)


def operand(memory: np.ndarray, start: int, next_k: int, next_rows: int, count: int) -> np.ndarray:
    """(16, count): what wgmma reads there, core matrices of eight rows x eight numbers along k; offsets in numbers."""
    k, row = np.arange(16)[:, None], np.arange(count)
    return memory[start + k // 8 * next_k + row // 8 * next_rows + row % 8 * 8 + k % 8]


def both_halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest float16, and the nearest to what this loses."""
    return half(x), half(x - half(x))


def from_registers(fragments: np.ndarray) -> np.ndarray:
    """(..., 32 lanes, 4 registers, 2) → (..., 16, 16): A of a warp's mma, and of a warp's rows in wgmma."""
    a = np.full((*fragments.shape[:-3], 16, 16), np.nan)
    for register, pair in np.ndindex(4, 2):
        a[..., 8 * (register % 2) + G, 8 * (register // 2) + 2 * T + pair] = fragments[..., register, pair]
    return a


def staged(image: np.ndarray) -> np.ndarray:
    """(28, 28) → windows of eight pixels at every fourth column: even rows, odd rows, each with a row of zeros."""
    memory = np.full(2 * WINDOW_HALF, np.nan)
    for parity in range(2):
        memory[parity * WINDOW_HALF + 14 * WINDOW_ROW :][:WINDOW_ROW] = 0
    for row in range(28):
        for window in range(6):
            at = row % 2 * WINDOW_HALF + row // 2 * WINDOW_ROW + window * 8
            memory[at : at + 8] = image[row, 4 * window : 4 * window + 8]
    return memory


def first_sums(
    filters: np.ndarray, memory: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray] = lambda sums: sums
) -> np.ndarray:
    """(2, 3, 128, 4, 2) → (odd maps, lower rows, 64, 72); sums are rounded after each step."""
    sums = np.zeros((2, 2, 64, 72))
    for odd in range(2):
        for step in range(3):
            a = from_registers(filters[odd, step].reshape(4, 32, 4, 2)).reshape(64, 16)
            even_row = WINDOW_HALF if step == 1 else step * WINDOW_ROW
            odd_row = WINDOW_ROW if step == 1 else WINDOW_HALF + step * WINDOW_ROW
            for lower, start in enumerate((even_row, odd_row)):
                sums[odd, lower] = rounded(sums[odd, lower] + a @ operand(memory, start, WINDOW_ROW, 64, 72))
    return sums


def in_place(windows: np.ndarray) -> np.ndarray:
    """(odd maps, w, g, 72) sums over windows → (32 channels, 12, 12)."""
    pooled = np.full((32, 12, 12), np.nan)
    column = np.arange(72)
    for odd in range(2):
        for w in range(4):
            for g in range(8):
                pooled[8 * w + 2 * (g % 4) + odd, column // 6, column % 6 * 2 + g // 4] = windows[odd, w, g]
    return pooled


def second_sums(filters: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """(25, 2, 2, 8, 8, 8) and (images, 32, 12, 12) → (64, 8, images, 8)."""
    images = len(pooled)
    # [eight channels][row][image][column][channel]
    memory = np.ascontiguousarray(pooled.reshape(images, 4, 8, 12, 12).transpose(1, 3, 0, 4, 2)).ravel()
    words, sums = filters.ravel(), np.zeros((64, 64 * images))
    for tap in range(25):
        for step in range(2):
            a = operand(words, (2 * tap + step) * 1024, 512, 64, 64)
            at = tap // 5 * images * ROW + tap % 5 * 8 + step * 2 * PLANE * images
            sums += a.T @ operand(memory, at, PLANE * images, ROW, 64 * images)
    return sums.reshape(64, 8, images, 8)


def convolutions(problem: ConvPairProblem, packed: Packed, images: np.ndarray) -> np.ndarray:
    """What the wgmma kernels write for (images, 28, 28) bytes: flat features."""
    filters1, filters2, scales = (np.asarray(array).astype(np.float64) for array in packed)
    split = problem.dtype == "float16x2"
    parts1 = filters1.reshape(-1, 2, 3, 128, 4, 2)
    parts2 = filters2.reshape(25, -1, 2, 2, 8, 8, 8)
    pooled = []
    for image in images:
        memory = staged(image.astype(np.float64))
        # Rows 8 h + g of a warp's 16 are neighbouring columns, h = 0 and 1.
        rounded = {} if split else {"rounded": half}
        both = np.sum([first_sums(part, memory, **rounded) for part in parts1], axis=0)
        sums = both.reshape(2, 2, 4, 2, 8, 72)  # odd, lower, w, h, g
        if split:
            pooled.append(in_place(scales[0] * twice_relu(sums).sum(axis=(1, 3))))
        else:
            activations = np.maximum(sums, 0)
            rows = half(activations[:, :, :, 0] + activations[:, :, :, 1])
            pooled.append(in_place(half(rows[:, 0] + rows[:, 1])))
    maps = np.stack(pooled)
    if split:
        high, low = both_halves(maps)
        total = second_sums(parts2[:, 0], high) + second_sums(parts2[:, 0], low)
        if problem.weight_parts == 2:
            total += second_sums(parts2[:, 1], high)
    else:
        total = second_sums(parts2[:, 0], maps)
    windows = twice_relu(total).reshape(64, 4, 2, len(images), 4, 2).sum(axis=(2, 5))  # map, row, image, column
    return (windows * scales[1]).transpose(2, 0, 1, 3).ravel()


def pooled_sums(x: np.ndarray) -> np.ndarray:
    """(images, rows, columns, maps): ReLU, then sums over 2 x 2 windows."""
    images, rows, columns, maps = x.shape
    return np.maximum(x, 0).reshape(images, rows // 2, 2, columns // 2, 2, maps).sum(axis=(2, 4))


def _tap(k: int) -> tuple[int, int]:
    """The pixel of a window that the mma kernel multiplies by row k of B: a pair is lane % 4 + 4 * register."""
    pair = min(k // 8 * 4 + k % 8 // 2, 14)
    return pair // 3, pair % 3 * 2 + k % 2


def _mma_first(x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """(images, 28, 28) and (4 tiles, 32 lanes, 4 registers of two steps, 2) → sums (images, 24, 24, 32)."""
    x = np.pad(x, ((0, 0), (0, 0), (0, 1)))
    b = np.empty((32, 4, 8))  # rows; tiles of eight columns side by side
    for register, pair in np.ndindex(4, 2):
        b[8 * register + 2 * T + pair, :, G] = filters[:, :, register, pair].T
    windows = np.stack([x[:, p : p + 24, q : q + 24] for p, q in map(_tap, range(32))], axis=-1)
    return windows @ b.reshape(32, 32)


def _mma_second(x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """(images, 12, 12, 32) and (passes, 50, tiles, 32 lanes, 4, 2) → sums (images, 8, 8, 64)."""
    a = np.moveaxis(from_registers(filters), 1, 0).reshape(50, 64, 16)
    sums = np.zeros((len(x), 8, 8, 64))
    for step in range(50):
        row, column, channel = step // 10, step // 2 % 5, step % 2 * 16
        sums += x[:, row : row + 8, column : column + 8, channel : channel + 16] @ a[step].T
    return sums


def mma_convolutions(problem: ConvPairProblem, packed: Packed, images: np.ndarray) -> tuple[np.ndarray, float]:
    """What the mma kernel makes of (images, 28, 28) bytes: flat features before they are stored, largest activation."""
    filters1, bias1, filters2, bias2, scales = packed
    assert filters1 is not None and filters2 is not None and scales is not None
    assert [filters1.dtype, filters2.dtype, scales.dtype] == [np.float16, np.float16, np.float32]
    x, parts, maps = images.astype(np.float64), problem.parts, 64 // problem.parts
    taps = filters1.reshape(problem.weight_parts, 4, 32, 4, 2)
    sums = np.sum([_mma_first(x, part) for part in taps], axis=0) + (0 if bias1 is None else bias1)
    activations = 2 * scales[0] * pooled_sums(sums)
    steps = np.moveaxis(filters2.reshape(64 // maps, 50, problem.weight_parts, maps // 16, 32, 4, 2), 2, 0)
    high, low = both_halves(activations)
    sums = _mma_second(high, steps[0]) + (0 if bias2 is None else bias2)
    if parts == 2:
        sums = sums + _mma_second(low, steps[0])
    if problem.weight_parts == 2:
        sums = sums + _mma_second(high, steps[1])
    features = 2 * scales[1] * pooled_sums(sums)
    return features.transpose(0, 3, 1, 2).ravel(), float(activations.max())


def fragments_of(problem: LinearPairProblem, packed: np.ndarray) -> np.ndarray:
    """The first matrix's parts as the lanes read them: (parts, inputs, hidden)."""
    inputs, hidden = problem.first.inputs, problem.first.outputs
    # step, part, k of 16, tile of 16, g, t, half of the tile, half of k, pair: lane 4 g + t has b[0] and b[1] of the
    # left tile of eight, then of the right one
    words = packed.astype(np.float64).reshape(inputs // 64, -1, 4, hidden // 16, 8, 4, 2, 2, 2)
    return words.transpose(1, 0, 2, 7, 5, 8, 3, 6, 4).reshape(-1, inputs, hidden)


def products(problem: LinearPairProblem, packed: Packed, x: np.ndarray) -> np.ndarray:
    """What the mma kernel writes for (images, inputs), as stored: flat scores."""
    w1, bias1, w2, bias2 = packed
    assert w1 is not None and w2 is not None
    parts = fragments_of(problem, w1)
    high = half(x)
    sums = high @ parts[0]
    if problem.dtype == "float16x2":
        sums += half(LOW_SCALE * (x - high)) @ parts[0] / LOW_SCALE
    if problem.weight_parts == 2:
        sums += high @ parts[1] / LOW_SCALE
    hidden = np.maximum(sums + (0 if bias1 is None else bias1), 0)
    return (hidden @ w2.reshape(problem.second.inputs, -1) + (0 if bias2 is None else bias2)).ravel()


def terms_of(problem: LinearPairProblem | LinearProblem) -> list[tuple[int, int]]:
    """Which halves of weights and inputs are multiplied: high by high, then low by high."""
    crossed = [(1, 0)] * (problem.weight_parts - 1) + [(0, 1)] * (problem.parts - 1)
    return [(0, 0), *crossed]


def warpgroup_product(problem: LinearProblem, packed: Packed, x: np.ndarray) -> np.ndarray:
    """What the kernel of one product computes for (images, inputs), as stored, before it stores: (images, outputs)."""
    w, factors, bias = packed
    assert w is not None and factors is not None
    tile = tile_of(problem)
    words = w.astype(np.float64).reshape(-1, tiles(problem.inputs, STEP), problem.weight_parts, STEP * tile)
    x = np.pad(x, ((0, 0), (0, -problem.inputs % STEP)))
    parts = [half(x), half(LOW_SCALE * (x - half(x)))]
    sums = np.zeros((len(x), len(words) * tile))
    for across, step, k in np.ndindex(*words.shape[:2], STEP // 16):
        own = slice(across * tile, (across + 1) * tile)
        for w_part, x_part in terms_of(problem):
            b = operand(words[across, step, w_part], 2 * k * tile * 8, tile * 8, 64, tile)
            terms = parts[x_part][:, step * STEP + 16 * k :][:, :16] @ b
            sums[:, own] += terms / (LOW_SCALE if w_part + x_part else 1)
    y = sums[:, : len(factors)] * factors + (0 if bias is None else bias)
    return ACTIVATIONS[problem.activation]("").reference(y, {}) if problem.activation else y


def any_products(problem: LinearPairProblem, packed: Packed, x: np.ndarray) -> np.ndarray:
    """What the kernel of any two products computes for (images, inputs), as stored: (images, classes) scores."""
    w1, factors, bias1, fragments, bias2 = packed
    assert fragments is not None
    hidden = warpgroup_product(replace(problem.first, exact=problem.exact), [w1, factors, bias1], x)
    scores = _by_classes(hidden, fragments)[:, : problem.second.outputs] + (0 if bias2 is None else bias2)
    return Softmax("softmax").reference(scores, {}) if problem.second.softmax else scores


def wgmma_products(problem: LinearPairProblem, packed: Packed, x: np.ndarray) -> np.ndarray:
    """What the wgmma kernel computes for (images, inputs), as stored: (images, 16) scores, of which it stores some."""
    w1, bias1, fragments, bias2 = packed
    assert w1 is not None and fragments is not None
    high, words = half(x), w1.astype(np.float64)
    parts = [high, half(LOW_SCALE * (x - high))] if problem.dtype == "float16x2" else [high]
    depth, plane = DEPTH[problem.dtype], problem.first.outputs * 8  # numbers
    sums = np.zeros((len(x), problem.first.outputs))
    for k in range(0, problem.first.inputs, 16):
        for w_part, x_part in terms_of(problem):
            start = ((k // depth * problem.weight_parts + w_part) * depth + k % depth) // 8 * plane
            terms = parts[x_part][:, k : k + 16] @ operand(words, start, plane, 64, problem.first.outputs)
            sums += terms / (LOW_SCALE if w_part + x_part else 1)
    scores = _by_classes(np.maximum(sums + (0 if bias1 is None else bias1), 0), fragments)
    if bias2 is not None:
        scores[:, : len(bias2)] += bias2
    return scores


def _by_classes(hidden: np.ndarray, fragments: np.ndarray) -> np.ndarray:
    """(images, hidden) → (images, tiles of 16), by mma_tf32's A as mma.cuh says, high parts and low parts."""
    assert not (fragments.view(np.uint32) & 0x1FFF).any()  # tfloat32
    across = fragments.reshape(2, -1, hidden.shape[1] // 8, 32, 4).astype(np.float64).sum(axis=0)
    scores = np.zeros((len(hidden), len(across) * CLASSES))
    for (tile, step), _ in np.ndenumerate(across[:, :, 0, 0]):
        a = np.full((CLASSES, 8), np.nan)
        for register in range(4):
            a[G + register % 2 * 8, T + register // 2 * 4] = across[tile, step, :, register]
        scores[:, tile * CLASSES : (tile + 1) * CLASSES] += hidden[:, step * 8 : step * 8 + 8] @ a.T
    return scores
