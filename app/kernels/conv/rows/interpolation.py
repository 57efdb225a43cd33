"""Compute two neighbouring outputs of a row of K taps with K + 1 products: transforms, and the bound of their error.

The outputs y[i] = Σ g[k] d[i + k], i = 0 and 1, follow from the Toom-Cook multiplication of polynomials by
transposition: y = A ((G g) * (B d)), with points p[0] to p[K - 1] and infinity, and

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
from math import prod
from typing import Any

import numpy as np

from app.kernels.problems import ConvProblem

Matrix = tuple[tuple[Fraction, ...], ...]
OUTPUTS = 2  # computed together
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
    """Return the matrices B (K + 1, K + 1), G (K + 1, K) and A (2, K + 1) for K = ``taps``, one of POINTS."""
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


def as_array(matrix: Matrix) -> np.ndarray:
    """Return the matrix as float64, rounded."""
    return np.array([[float(value) for value in row] for row in matrix])


@cache
def cpp_initialiser(matrix: Matrix) -> str:
    """Return the matrix as a C++ initialiser of an array of float, which must hold its numbers exactly."""
    assert all(Fraction(float(np.float32(float(value)))) == value for row in matrix for value in row)
    return "{" + ",".join("{" + ",".join(f"{float(value)!r}f" for value in row) + "}" for row in matrix) + "}"


def transformed_filters(weights: np.ndarray) -> np.ndarray:
    """Return the filters (C, K, K, M) evaluated at the points: (C, K + 1 points, K rows, M) float64."""
    return np.einsum("jq,cpqm->cjpm", as_array(toom_cook_matrices(weights.shape[2])[1]), weights.astype(np.float64))


def error_bound(problem: ConvProblem, x: Any, w: Any, bias: Any) -> tuple[int, Any]:
    """Return (number of roundings, magnitudes): their product bounds the error before activation and pooling.

    x: (images, C * H * W), w: (C, K, K, M), bias: (M,) or None; NumPy or CuPy arrays. Magnitudes: (images, M, OH, OW)
    float64.
    """
    taps, (height, width) = problem.kernel, problem.conv_output_size
    pairs = -(-width // OUTPUTS)
    to_inputs, to_filters, to_outputs = (as_array(matrix).tolist() for matrix in toom_cook_matrices(taps))
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
