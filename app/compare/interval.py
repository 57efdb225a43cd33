"""How much slower a row became: the change of its median, its 95 % interval, and a verdict. Pure."""

from collections.abc import Sequence
from math import ceil

import numpy as np

LEAST_SAMPLES = 5  # on either side, for an interval
RESAMPLES = 10_000
RELEVANT = 1.0  # percent: two runs of the same program differ by as much
SLOWER, FASTER, SAME, UNKNOWN = "slower", "faster", "same", "unknown"


def percent(before: float, after: float) -> float:
    """Return by how many percent ``after`` exceeds ``before``, which is above 0."""
    return (after / before - 1) * 100


def interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the change of the median, in percent; None for too few samples.

    The bootstrap's percentiles: both lists of samples, all above 0, are drawn again and again, each with replacement.
    Equal arguments give equal intervals.
    """
    if min(len(before), len(after)) < LEAST_SAMPLES:
        return None
    rng = np.random.default_rng(0)
    low, high = np.percentile(_medians(after, rng) / _medians(before, rng), (2.5, 97.5))
    return percent(1, float(low)), percent(1, float(high))


def _medians(samples: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Return the medians of RESAMPLES resamples.

    A resample draws ranks that are uniform in [0, 1); its median is the sample at the rank in their middle, which
    follows a beta distribution. So one number is drawn for each resample, instead of ``len(samples)``.
    """
    count = len(samples)
    middle = ceil(count / 2)
    ranks = rng.beta(middle, count - middle + 1, RESAMPLES)
    return np.sort(np.asarray(samples, float))[np.minimum((ranks * count).astype(int), count - 1)]


def verdict(change: float, bounds: tuple[float, float] | None) -> str:
    """Return ``slower`` or ``faster`` for a relevant change whose interval excludes 0; ``unknown`` without one."""
    if bounds is None:
        return UNKNOWN
    if abs(change) < RELEVANT or bounds[0] <= 0 <= bounds[1]:
        return SAME
    return SLOWER if change > 0 else FASTER


def exceeds(change: float, bounds: tuple[float, float] | None, most: float) -> bool:
    """Return whether it became slower by over ``most`` percent, beyond noise; without an interval it counts, too."""
    return change > most and (bounds is None or bounds[0] > 0)
