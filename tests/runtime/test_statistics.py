"""Percentiles by nearest rank, only of enough samples; the interval of the median; ratios of times."""

import numpy as np
import pytest

from app.runtime.result import Timing
from app.runtime.statistics import half_width, median, nearest_rank, speedup, summary


@pytest.mark.parametrize(("q", "expected"), [(1, 1), (10, 1), (11, 2), (50, 5), (90, 9), (91, 10), (99, 10), (100, 10)])
def test_nearest_rank(q: int, expected: int) -> None:
    assert nearest_rank([7, 3, 10, 1, 5, 9, 2, 8, 4, 6], q) == expected


def test_quantiles_of_too_few_samples_are_none() -> None:
    assert summary([2.5]) == {"p10": None, "p50": 2.5, "p90": None, "p99": None, "runs": 1}
    assert summary([2.5] * 10) == {"p10": 2.5, "p50": 2.5, "p90": 2.5, "p99": None, "runs": 10}
    assert None not in summary([2.5] * 100).values()


def test_a_timing_and_a_summary_are_of_one_definition() -> None:
    for runs in range(1, 130):
        timing = Timing(tuple(float(ms) for ms in range(runs, 0, -1)))
        found = summary(timing.samples)
        assert all(found[f"p{q}"] == timing.percentile(q) for q in (10, 50, 90, 99))
        assert timing.median == found["p50"] == median(timing.samples) in timing.samples


def test_half_width_covers_the_median() -> None:
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(400):
        samples = rng.normal(10, 1, 40)
        misses += bool(abs(np.median(samples) - 10) > half_width(samples.tolist()) * 1.3)
    assert misses < 40


def test_speedup() -> None:
    assert speedup(6.0, 2.0) == 3.0
    assert speedup(None, 2.0) is speedup(6.0, None) is None
