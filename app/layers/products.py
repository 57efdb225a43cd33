"""Multiply matrices so that a row's bits depend neither on the other rows nor on the row's index.

A matrix library chooses its loops by shape, and each loop rounds in its own order: with AVX2, OpenBLAS rounds the first
and last rows of a product differently. Here a row always has the bits that a product of eight rows gives it. For each
shape, one measurement finds whether larger products give the same bits.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from app.base.processor import one_blas_thread

GROUP = 8  # rows of the small product that defines the bits of a row
BLOCK = 128  # rows of a larger product, up to twice as fast because it reads the weights once
MARGIN = 8  # rows of zeros at both ends of a block whose first and last rows round differently
COMPARED = 256  # least number of results to compare before rows count as rounded alike


class RowRounding(NamedTuple):
    """Which rows of a product the matrix library rounds in the same way, for one shape of the weights.

    rows: how many of the 8 rows of a group are rounded like its first: 8 or 1. margin: how many rows at either end of a
    block of 128 are rounded in another way; None if any may be. straight: whether x @ weights rounds a group like
    weights.T @ x.T, which defines the bits; x @ weights takes half the time for few rows and many weights.
    """

    rows: int
    margin: int | None
    straight: bool


def multiply_rows(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return x @ weights: (B, in) times (in, out) → (B, out), all of one float type."""
    alike = measure_row_rounding(*weights.shape, x.dtype.str)
    y = np.empty((len(x), weights.shape[1]), x.dtype)
    blocks = 0 if alike.margin is None else len(x) // BLOCK * BLOCK
    for at in range(0, blocks, BLOCK):
        y[at : at + BLOCK] = _multiply_block(x[at : at + BLOCK], weights, alike.margin or 0)
    if blocks < len(x):
        y[blocks:] = _multiply_in_groups(x[blocks:], weights, alike.rows, alike.straight)
    return y


@cache
@one_blas_thread()
def measure_row_rounding(inputs: int, outputs: int, dtype: str) -> RowRounding:
    """Measure which rows the matrix library rounds in the same way, for weights (inputs, outputs).

    Groups and blocks of equal rows are multiplied by random weights, and their results compared.
    """
    values = np.random.default_rng(0).standard_normal(4093).astype(dtype)  # a prime length makes all columns differ
    weights = np.resize(values, (inputs, outputs))
    rows, margins, straight = GROUP, [0, MARGIN], True
    for turn in range(-(-COMPARED // outputs)):
        x = np.tile(np.resize(np.roll(values, turn), inputs), (BLOCK, 1))
        group = _multiply_in_groups(x[:GROUP], weights, GROUP, False)
        if (group != group[0]).any():
            rows = 1  # only the first row of every group is used
        straight = straight and bool((_multiply_in_groups(x[:GROUP], weights, GROUP, True)[:rows] == group[0]).all())
        margins = [margin for margin in margins if (_multiply_block(x, weights, margin) == group[0]).all()]
    return RowRounding(rows, margins[0] if margins else None, straight)


def _multiply_block(x: np.ndarray, weights: np.ndarray, margin: int) -> np.ndarray:
    """Return x (BLOCK, in) @ weights, transposed, to round more rows alike. margin: rows of zeros at either end."""
    if margin:
        rows = np.empty((margin + BLOCK + margin, x.shape[1]), x.dtype)
        rows[:margin], rows[margin:-margin], rows[-margin:] = 0, x, 0
        return (weights.T @ rows.T).T[margin:-margin]
    return (weights.T @ x.T).T


def _multiply_in_groups(x: np.ndarray, weights: np.ndarray, used: int, straight: bool) -> np.ndarray:
    """Return x (B, in) @ weights by products of GROUP rows: ``used`` of x, then zeros. straight: do not transpose."""
    products = -(-len(x) // used)
    rows = x
    if len(x) != products * GROUP:
        rows = np.zeros((products * GROUP, x.shape[1]), x.dtype)
        rows[:: GROUP // used][: len(x)] = x
    rows = rows.reshape(products, GROUP, -1)
    y = rows @ weights if straight else np.matmul(weights.T, rows.transpose(0, 2, 1)).transpose(0, 2, 1)
    return y[:, :used].reshape(-1, weights.shape[1])[: len(x)]
