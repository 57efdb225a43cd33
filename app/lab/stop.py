"""Decide by pure functions when a measurement has enough samples."""

from collections.abc import Sequence
from math import ceil

from app.main_job.statistics import median, median_half_width

LEAST_RUNS, MOST_RUNS = 10, 200
SECONDS = 1.0  # with this much time measured, PATIENCE runs are enough
PATIENCE = 3
SHORT_MS = 0.2  # shorter launches are timed several at once if the cache is warm


def has_enough_samples(samples_ms: Sequence[float], noise: float) -> bool:
    """Return whether the median is known to within the relative error ``noise``, or more runs would take too long."""
    count = len(samples_ms)
    if count >= MOST_RUNS or (count >= PATIENCE and sum(samples_ms) >= SECONDS * 1e3):
        return True
    return count >= LEAST_RUNS and median_half_width(samples_ms) <= noise * median(samples_ms)


def launches_per_sample(ms: float, l2: str) -> int:
    """Return how many launches to time together: several only if they are short and the cache is warm."""
    return 1 if l2 == "cold" or ms <= 0 else min(max(ceil(SHORT_MS / ms), 1), 50)


def describe_stopping_rule(noise: float, l2: str) -> str:
    """Return the rule in words, for the header of a table."""
    cache = {
        "cold": "cold L2 (flushed before every run)",
        "warm": f"warm L2 (launches below {SHORT_MS} ms timed several at a time)",
    }
    return (
        f"{LEAST_RUNS} to {MOST_RUNS} runs, until half the 95 % interval of the median is within {noise:.1%} of it "
        f"(after {SECONDS:g} s: {PATIENCE} runs at least); {cache[l2]}"
    )
