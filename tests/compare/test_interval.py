"""The interval of a change: the bootstrap's, which covers the true change; and the verdicts."""

import numpy as np
import pytest

from app.compare.interval import LEAST_SAMPLES, exceeds, interval, percent, verdict


def resampled(samples: list[float], rng: np.random.Generator) -> np.ndarray:
    """Medians (the lower in the middle) of 20,000 resamples, drawn one by one."""
    drawn = np.sort(rng.choice(samples, (20_000, len(samples))), axis=1)
    return drawn[:, (len(samples) - 1) // 2]


@pytest.mark.parametrize(("before", "after"), [(5, 9), (20, 20), (31, 100)])
def test_it_is_the_bootstraps(before: int, after: int) -> None:
    rng = np.random.default_rng(before)
    a, b = rng.gamma(9, 0.1, before).tolist(), (1.3 * rng.gamma(9, 0.1, after)).tolist()
    found = interval(a, b)
    ratios = resampled(b, rng) / resampled(a, rng)
    assert found == pytest.approx([percent(1, ratio) for ratio in np.percentile(ratios, (2.5, 97.5))], abs=2)


def test_it_covers_the_true_change() -> None:
    """Of medians 2 and 2.2, about 19 times of 20."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        a, b = (2 * rng.lognormal(0, 0.1, 40)).tolist(), (2.2 * rng.lognormal(0, 0.2, 60)).tolist()
        bounds = interval(a, b)
        assert bounds is not None and bounds[0] < bounds[1]
        covered += bounds[0] <= 10 <= bounds[1]
    assert 0.9 < covered / 200 < 0.99


def test_few_samples_have_none_and_equal_ones_no_width() -> None:
    enough = [1.0] * LEAST_SAMPLES
    assert interval(enough, enough[1:]) is None and interval([], []) is None
    assert interval(enough, [1.5] * LEAST_SAMPLES) == (50, 50)
    assert interval([1.0, 2.0, 3.0] * 9, [1.0, 2.0, 3.0] * 7) == interval([1.0, 2.0, 3.0] * 9, [1.0, 2.0, 3.0] * 7)


@pytest.mark.parametrize(
    ("change", "bounds", "expected", "fails"),
    [
        (5, (3, 7), "slower", True),
        (5, (-0.1, 7), "same", False),
        (-5, (-7, -3), "faster", False),
        (0.9, (0.8, 1.0), "same", False),
        (2, (1, 3), "slower", False),
        (5, None, "unknown", True),
        (-5, None, "unknown", False),
    ],
)
def test_verdicts(change: float, bounds: tuple[float, float] | None, expected: str, fails: bool) -> None:
    assert verdict(change, bounds) == expected
    assert exceeds(change, bounds, 3) is fails
