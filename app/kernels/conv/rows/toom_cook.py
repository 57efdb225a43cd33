"""Define the registry row of the Toom-Cook convolution: its transforms, their error bound, and its packed filters.

The kernel computes two neighbouring outputs of a row of K taps with K + 1 products. The outputs y[i] = Σ g[k] d[i + k],
i = 0 and 1, follow from the Toom-Cook multiplication of polynomials by transposition: y = A ((G g) * (B d)), for points
p[0] to p[K - 1] and infinity, and

* B (K + 1, K + 1): row j has the coefficients of Π (x - p[i]) over all i ≠ j; the last row those over all i;
* G (K + 1, K): row j has p[j]**k ÷ Π (p[j] - p[i]) over all i ≠ j; the last row takes the last tap;
* A (2, K + 1): row 0 sums over all points, row 1 weights each by p[j]; only row 1 uses infinity.

The points are fractions of powers of two, so that float32 holds A and B exactly. They were chosen among all sets of
fifteen small fractions: the sets with the least error for random operands, and of nearly equal ones the symmetric ones,
whose B has more zeros. With random operands and 32 channels, the RMS error ÷ that of a plain float32 sum is 0.8 for K =
3, 1.2 for K = 5 and 1.9 for K = 7; the points 0, 1, -1, 2, -1/2 give 1.4 for K = 5.

The error of an output, with u = 2**-24, to first order: B d takes at most K + 1 multiply-adds, G g is rounded once, the
sum over channels and rows takes C K multiply-adds and A at most K + 1. So the error is at most

    (C K + 2 (K + 1) + 1) u Σ |A| (|G g| * (|B| |d|))

while that of a plain sum is at most (C K²) u Σ |g| |d|. The bound includes pixels of the neighbouring output, because
they cancel only to rounding.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from app.kernels.conv.rows.register_patch import map_block_count, vector_width
from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    STATIC_SHARED_LIMIT,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    pooling_defines,
    type_defines,
    weight_reordering_packing,
)

Matrix = tuple[tuple[Fraction, ...], ...]
OUTPUTS = 2  # neighbouring outputs that are computed together
_POINTS = {
    1: "0",
    2: "1/2 -1/2",
    3: "0 1 -1",
    4: "0 1 -1/2 -2",
    5: "0 3/4 -3/4 3/2 -3/2",
    6: "0 1 -1 -1/2 -2 3/2",
    7: "0 1 -1 1/2 -1/2 2 -2",
}
POINTS = {taps: tuple(map(Fraction, text.split())) for taps, text in _POINTS.items()}  # K → all but infinity


@cache
def toom_cook_matrices(taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the matrices B (K + 1, K + 1), G (K + 1, K) and A (2, K + 1) for K = ``taps``, a key of POINTS."""
    points = POINTS[taps]
    inputs, filters = [], []
    for at, point in enumerate(points):
        others = points[:at] + points[at + 1 :]
        inputs.append((*_polynomial_from_roots(others), Fraction(0)))
        divisor = prod((point - other for other in others), start=Fraction(1))
        filters.append(tuple(point**k / divisor for k in range(taps)))
    inputs.append(_polynomial_from_roots(points))
    filters.append((*(Fraction(0),) * (taps - 1), Fraction(1)))
    outputs = tuple((*(point**i for point in points), Fraction(i)) for i in range(OUTPUTS))
    return tuple(inputs), tuple(filters), outputs


def _polynomial_from_roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial Π (x - root), the constant first."""
    found = [Fraction(1)]
    for root in roots:
        higher, same = [Fraction(0), *found], [*found, Fraction(0)]
        found = [a - root * b for a, b in zip(higher, same, strict=True)]
    return tuple(found)


def as_float64(matrix: Matrix) -> np.ndarray:
    """Return the matrix of fractions, rounded to float64."""
    return np.array([[float(value) for value in row] for row in matrix])


@cache
def cpp_initialiser(matrix: Matrix) -> str:
    """Return the matrix as a C++ initialiser of a float array; its numbers must be exact in float32."""
    assert all(Fraction(float(np.float32(float(value)))) == value for row in matrix for value in row)
    return "{" + ",".join("{" + ",".join(f"{float(value)!r}f" for value in row) + "}" for row in matrix) + "}"


def transform_filters(weights: np.ndarray) -> np.ndarray:
    """Return the filters (C, K, K, M), each row evaluated at the points: (C, K + 1 points, K rows, M) float64."""
    return np.einsum("jq,cpqm->cjpm", as_float64(toom_cook_matrices(weights.shape[2])[1]), weights.astype(np.float64))


def error_bound(problem: ConvProblem, x: Any, w: Any, bias: Any) -> tuple[int, Any]:
    """Return (number of roundings, magnitudes): their product bounds the error before activation and pooling.

    x: (images, C * H * W), w: (C, K, K, M), bias: (M,) or None; NumPy or CuPy arrays. Magnitudes: (images, M, OH, OW)
    float64.
    """
    taps, (height, width) = problem.kernel, problem.conv_output_size
    pairs = -(-width // OUTPUTS)
    to_inputs, to_filters, to_outputs = (as_float64(matrix).tolist() for matrix in toom_cook_matrices(taps))
    beyond = OUTPUTS * pairs - width
    around = problem.padding, problem.padding
    pixels = abs(x.reshape(-1, problem.channels, problem.height, problem.width).astype(np.float64))
    pixels = np.pad(pixels, ((0, 0), (0, 0), around, (around[0], around[1] + beyond)))
    last = OUTPUTS * (pairs - 1) + 1
    runs = [pixels[..., at : at + last : OUTPUTS] for at in range(taps + 1)]
    w = w.reshape(problem.channels, taps, taps, problem.maps).astype(np.float64)
    magnitude = np.zeros_like(pixels, shape=(len(pixels), problem.maps, height, OUTPUTS * pairs))
    for point in range(taps + 1):
        inputs = sum(abs(to_inputs[point][at]) * runs[at] for at in range(taps + 1))
        filters = abs(sum(to_filters[point][q] * w[:, :, q] for q in range(taps)))
        sums = np.zeros_like(pixels, shape=(len(pixels), problem.maps, height, pairs))
        for c in range(problem.channels):
            for p in range(taps):
                sums += inputs[:, None, c, p : p + height] * filters[c, p][:, None, None]
        for place in range(OUTPUTS):
            magnitude[..., place::OUTPUTS] += abs(to_outputs[place][point]) * sums
    if bias is not None:
        magnitude += abs(bias.astype(np.float64))[:, None, None]
    return problem.channels * taps + 2 * (taps + 1) + 1, magnitude[..., :width]


DEFAULT_SUMS = 64
MOST_SUMS = 128  # per thread
MOST_THREADS = 1024  # per block
TUNABLES = {
    "TM": (4, 8, 16),
    "TR": (4, 6, 8, 12),
    "GROUPS": (4, 8),  # most groups of maps that share a block's transformed inputs
    "THREADS": (96, 192, 384),
    "CK": (1, 2, 4, 8),
    "WARPS": (8, 12, 16, 20),  # per multiprocessor: fewer warps leave each thread more registers
}


def _refusal_reason(problem: ConvProblem) -> str | None:
    """Return why no parameters suit the problem, or None. Neighbouring outputs must share pixels, hence stride 1."""
    if problem.stride != 1:
        return f"computes with stride 1 alone, not {problem.stride}"
    if problem.kernel not in POINTS:
        return f"has points for filters of at most {max(POINTS)} x {max(POINTS)}, not {problem.kernel}"
    return None


def _default_parameters(problem: ConvProblem) -> dict[str, int]:
    """Return the parameters of a fitting tile with the least estimated cost: idle threads, and loads per product."""
    height = problem.pooled_size[0] * problem.pool

    def cost(tm: int, tr: int) -> float:
        maps = tm * min(ceil_div(problem.maps, tm), TUNABLES["GROUPS"][-1])
        waste = ceil_div(problem.maps, maps) * maps / problem.maps * (ceil_div(height, tr) * tr / height)
        vector, products = vector_width(tr), tm * tr * problem.kernel
        loads = (tr + problem.kernel - 1) / vector * (1.5 if vector > 1 else 1) + problem.kernel * tm / vector_width(tm)
        return waste * (1 + loads / products)

    shapes = product(TUNABLES["TM"], range(problem.pool, max(problem.pool, 16) + 1, problem.pool))
    fitting = [(cost(tm, tr), tm, tr) for tm, tr in shapes if tm * tr <= DEFAULT_SUMS]
    _, tm, tr = min(fitting, default=(0, 1, problem.pool))
    found = {"TM": tm, "TR": tr, "GROUPS": TUNABLES["GROUPS"][-1], "THREADS": 96, "WARPS": 16}
    found["CK"] = max(size for size in (1, 2, 4) if problem.channels % size == 0)
    for name in ("CK", "GROUPS", "THREADS"):
        while found[name] > 1 and not _fits_block_limits(problem, found):
            found[name] //= 2
    return found


def _fits_block_limits(problem: ConvProblem, parameters: Parameters) -> bool:
    (launch,) = _configure_toom_cook(problem, parameters).launches
    return launch.shared_bytes <= STATIC_SHARED_LIMIT and launch.threads <= MOST_THREADS


def _block_tile(problem: ConvProblem, tr: int, most: int) -> tuple[int, int, int]:
    """Return the images, bands of TR rows and column pairs per block; their product is about ``most``."""
    height, width = (size * problem.pool for size in problem.pooled_size)
    together = problem.pool if problem.pool % 2 else problem.pool // 2  # fewest pairs of whole pooling windows
    bands, columns = ceil_div(height, tr), ceil_div(width, OUTPUTS * together)
    tile_c = min(columns, max(most // together, 1))
    tile_c = ceil_div(columns, ceil_div(columns, tile_c)) * together
    tile_r = min(bands, max(most // tile_c, 1))
    tile_r = ceil_div(bands, ceil_div(bands, tile_r))
    return max(most // (bands * columns * together), 1), tile_r, tile_c


def _configure_toom_cook(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tm, tr, most_groups, most_threads, ck, warps = (parameters[name] for name in TUNABLES)
    if tr % problem.pool:
        raise Unfit(f"a column of {tr} rows holds no whole pooling windows of {problem.pool} rows")
    if problem.channels % ck:
        raise Unfit(f"{problem.channels} channels cannot be staged {ck} at a time")
    if tm * tr > MOST_SUMS:
        raise Unfit(f"{tm * tr} sums do not fit in a thread's registers")
    kernel, points = problem.kernel, problem.kernel + 1
    groups = min(ceil_div(problem.maps, tm), most_groups)
    block_maps = tm * groups
    map_blocks = map_block_count(problem.maps, block_maps)
    images, tile_r, tile_c = _block_tile(problem, tr, max(most_threads // (points * groups), 1))
    columns = images * tile_r * tile_c
    threads = ceil_div(points * groups * columns, 32) * 32
    # As in the kernel: a stage's inputs at the points and filters; later, in the same memory, the exchanged sums.
    vector = vector_width(tr)
    pitch = ceil_div(tile_r * tr + kernel - 1, vector) * vector
    pitch += vector * (pitch % (2 * vector) == 0)
    inputs, filters = ck * points * images * tile_c * pitch, ck * points * kernel * block_maps
    stages = (ceil_div(inputs, 4) + ceil_div(filters, 4)) * 16 * (2 if problem.channels > ck else 1)
    exchange = 4 * points * groups * columns * tr  # bytes for a map of each thread
    at_once = max((maps for maps in range(1, tm + 1) if tm % maps == 0 and maps * exchange <= stages), default=1)
    shared = max(stages, at_once * exchange)
    blocks = max(warps * 32 // threads, 1)
    height, width = (size * problem.pool for size in problem.pooled_size)
    per_image = ceil_div(height, tile_r * tr) * ceil_div(width, tile_c * OUTPUTS)
    to_inputs, _, to_outputs = toom_cook_matrices(kernel)
    matrices: dict[str, str | int] = {
        "INPUT_TRANSFORM": cpp_initialiser(to_inputs),
        "OUTPUT_TRANSFORM": cpp_initialiser(to_outputs),
    }
    tile: dict[str, str | int] = {"TM": tm, "TR": tr, "GROUPS": groups, "CK": ck, "IMAGES": images}
    tile |= {"TILE_R": tile_r, "TILE_C": tile_c, "AT_ONCE": at_once, "MIN_BLOCKS": blocks}
    return LaunchConfig(
        type_defines(problem) | conv_size_defines(problem) | pooling_defines(problem) | matrices | tile,
        (KernelLaunch(threads, lambda n: (ceil_div(n, images) * per_image, map_blocks, 1), shared_bytes=shared),),
        packing=weight_reordering_packing(
            problem,
            map_blocks * block_maps * problem.channels * points * kernel,
            lambda w: _pack_transformed_filters(w, problem, block_maps),
        ),
    )


def _pack_transformed_filters(weights: np.ndarray, problem: ConvProblem, block: int) -> np.ndarray:
    """Return filters (C, K, K, M) as (blocks, C, K + 1 points, K rows, block), transformed and zero-padded."""
    kernel = problem.kernel
    values = transform_filters(weights.reshape(problem.channels, kernel, kernel, problem.maps))
    padded = np.pad(values, ((0, 0), (0, 0), (0, 0), (0, -problem.maps % block)))
    return padded.reshape(-1, padded.shape[-1] // block, block).transpose(1, 0, 2)


ROWS: tuple[Variant, ...] = (
    Variant(
        "conv",
        20,
        "toom_cook",
        system="none of them",
        configure=_configure_toom_cook,
        dtypes=("float32",),
        since="register-patch",
        refuses=_refusal_reason,
        limits="stride 1 and filters of at most 7 x 7; a column must hold whole pooling windows",
        pools=True,
        tunables=TUNABLES,
        defaults=_default_parameters,
        error_bound=error_bound,
        work=lambda problem: (problem.kernel + 1) / (OUTPUTS * problem.kernel),  # K + 1 products of 2 K
    ),
)
