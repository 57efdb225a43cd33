"""Test McNemar's test against all outcomes of coin tosses, and against the exact test where it is approximate."""

import math
from itertools import product

import numpy as np
import pytest

from app.images.evaluate.metrics import APPROXIMATE, EXACT, MOST_EXACT, mcnemar, two_sided


def test_counts() -> None:
    first = np.array([1, 1, 1, 0, 0, 0, 0, 1], bool)
    second = np.array([1, 1, 0, 1, 1, 0, 1, 1], bool)
    found = mcnemar(first, second)
    assert [*found.values()] == [3, 1, 3, 1, 2 * (1 + 4) / 16, EXACT]


@pytest.mark.parametrize("tosses", range(11))
def test_p_by_every_outcome(tosses: int) -> None:
    """The share of the outcomes of so many tosses that are at least as uneven."""
    heads = [sum(outcome) for outcome in product((0, 1), repeat=tosses)]
    for one in range(tosses + 1):
        uneven = sum(abs(2 * count - tosses) >= abs(2 * one - tosses) for count in heads)
        assert two_sided(one, tosses - one) == (pytest.approx(uneven / len(heads), rel=1e-15), EXACT)


def test_many_images_are_approximated() -> None:
    tosses = MOST_EXACT + 1
    for one in range(440, 501, 10):
        exact = min(1.0, 2 * sum(math.comb(tosses, count) for count in range(one + 1)) / 2**tosses)
        for pair in ((one, tosses - one), (tosses - one, one)):
            assert two_sided(*pair) == (pytest.approx(exact, rel=0.02), APPROXIMATE)
    assert two_sided(500, 500) == (1.0, EXACT)
    assert two_sided(0, MOST_EXACT) == (pytest.approx(2.0 ** (1 - MOST_EXACT), rel=1e-15), EXACT)
    assert two_sided(0, 100_000) == (0.0, APPROXIMATE) and two_sided(50_000, 50_000) == (1.0, APPROXIMATE)
