"""Compare the answers of two classifiers to the same images: McNemar's test, and what changed."""

import math
from dataclasses import dataclass

import numpy as np

EXACT = "exact binomial"
APPROXIMATE = "chi-square with continuity correction"
MOST_EXACT = 1000
"""Images that only one of the two gets right, up to which the test is exact; there both differ by 0.1 % at p = 0.05."""


@dataclass(frozen=True)
class McNemar:
    """Images by which of two classifiers is right, and how likely so uneven a count is if both are equally good.

    p_value: two-sided. test: how it was computed, ``EXACT`` or ``APPROXIMATE``.
    """

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int
    p_value: float
    test: str


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """Count and test. first, second: which answers of each classifier are right, (N,) bool."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    p_value, test = two_sided(only_first, only_second)
    return McNemar(int((first & second).sum()), only_first, only_second, int((~first & ~second).sum()), p_value, test)


def two_sided(one: int, other: int) -> tuple[float, str]:
    """Return how likely a count at least as uneven is by tosses of a fair coin, and the test's name."""
    tosses = one + other
    if tosses <= MOST_EXACT:
        tail = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
        return min(1.0, 2 * tail / 2**tosses), EXACT
    statistic = max(0, abs(one - other) - 1) ** 2 / tosses
    return math.erfc(math.sqrt(statistic / 2)), APPROXIMATE


def changed_images(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the indexes of the images whose answers, (N,) each, differ."""
    return np.flatnonzero(first != second)
