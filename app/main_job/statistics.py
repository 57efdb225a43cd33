"""Compute statistics of repeated measurements, decide when there are enough of them, and analyse a traced run.

All functions are pure. Percentiles are nearest ranks, as in MLPerf's LoadGen: always one of the samples, never a value
between two. An interval of a trace is (start, stop) in milliseconds; all intervals have the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, floor, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

from app.base.frozen import Frozen

if TYPE_CHECKING:
    from app.records.report import Pipeline

Interval = tuple[float, float]
Limit = Literal["compute", "copy", "enqueue"]

SHOWN = (10, 50, 90, 99)
CLOCK_STEP_MS = 1e-6  # samples are stored to this resolution, finer than any clock used here
# Two levels of samples.
LEAST_SAMPLES = 20
LEAST_SHARE = 0.2  # of the samples in either group: fewer are outliers
EXPLAINED = 0.93  # share of the logarithms' variance: a uniform distribution reaches 0.75, a normal one 0.64
LEAST_RATIO = 1.1
LEAST_GAP_MS = 0.001  # two steps of CUDA's events


def nearest_rank(samples: Sequence[float], q: int) -> float:
    """Return the smallest sample that at least ``q`` percent (1..100) of the samples do not exceed."""
    return sorted(samples)[ceil(len(samples) * q / 100) - 1]


def median(samples: Sequence[float]) -> float:
    """Return the 50th percentile; of an even number of samples, the lower of the middle two."""
    return nearest_rank(samples, 50)


def percentile(samples: Sequence[float], q: int) -> float | None:
    """Return the q-th percentile (1..99), or None if there are too few samples; the median always exists.

    p10 and p90 need 10 samples, p99 needs 100; with fewer samples, p99 would be the slowest run.
    """
    supported = q == 50 or len(samples) * min(q, 100 - q) >= 100
    return nearest_rank(samples, q) if supported else None


def summarise_samples(samples: Sequence[float], shown: Sequence[int] = SHOWN) -> dict[str, Any]:
    """Return the percentiles ``shown`` as ``p10`` … (None: too few samples), ``runs`` (sample count), ``samples``."""
    return {**{f"p{q}": percentile(samples, q) for q in shown}, "runs": len(samples), "samples": round_samples(samples)}


def round_samples(samples: Sequence[float]) -> list[float]:
    """Return samples in ms as documents store them: in the order of measurement, rounded to a nanosecond."""
    return [round(float(sample), 6) for sample in samples]


def confidence_half_width(samples: Sequence[float]) -> float:
    """Return half the width of the median's 95 % confidence interval, which holds for any distribution."""
    ordered = sorted(samples)
    count = len(ordered)
    reach = 1.96 * sqrt(count) / 2
    low = max(floor(count / 2 - reach), 0)
    high = min(ceil(count / 2 + reach), count - 1)
    return (ordered[high] - ordered[low]) / 2


def rate_or_zero(amount: float, ms: float) -> float:
    """Return ``amount`` ÷ ``ms``; 0 for a time below the clock's resolution."""
    return amount / ms if ms >= CLOCK_STEP_MS else 0.0


def speedup(before_ms: float | None, after_ms: float | None) -> float | None:
    """Return ``before_ms`` ÷ ``after_ms``, or None if a time is missing."""
    return before_ms / after_ms if before_ms and after_ms else None


def split_two_modes(samples: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """Return a lower and an upper group of the samples, each in order, if they form two groups; otherwise None.

    samples: ms. The cut explains most of the variance of the logarithms (Otsu's method). Of lists of 20 or more samples
    with one peak, however skewed, it splits at most 0.3 %, also if each sample depends on the one before.
    """
    count = len(samples)
    if count < LEAST_SAMPLES or min(samples) <= 0:
        return None
    ordered = sorted(samples)
    logs = [log(sample) for sample in ordered]
    mean = sum(logs) / count
    least = int(LEAST_SHARE * count)
    sums = [*accumulate(value - mean for value in logs)]
    between, at = max((sums[at - 1] ** 2 * count / (at * (count - at)), at) for at in range(least, count - least + 1))
    if between <= EXPLAINED * sum((value - mean) ** 2 for value in logs):
        return None
    lower, upper = ordered[:at], ordered[at:]
    low, high = median(lower), median(upper)
    return (lower, upper) if high >= LEAST_RATIO * low and high - low > LEAST_GAP_MS else None


# When a measurement has enough samples.
LEAST_RUNS, MOST_RUNS = 10, 200
SECONDS = 1.0  # with this much time measured, PATIENCE runs are enough
PATIENCE = 3
SHORT_MS = 0.2  # shorter launches are timed several at once if the cache is warm


def has_enough_samples(samples_ms: Sequence[float], noise: float) -> bool:
    """Return whether the median is known to the relative error ``noise``, or more runs would take too long."""
    count = len(samples_ms)
    if count >= MOST_RUNS or (count >= PATIENCE and sum(samples_ms) >= SECONDS * 1e3):
        return True
    return count >= LEAST_RUNS and confidence_half_width(samples_ms) <= noise * median(samples_ms)


def launches_per_sample(ms: float, l2: str) -> int:
    """Return how many launches of ``ms`` ms each to time together: several if they are short and ``l2`` is ``warm``."""
    return 1 if l2 == "cold" or ms <= 0 else min(max(ceil(SHORT_MS / ms), 1), 50)


def describe_stopping_rule(noise: float, l2: str) -> str:
    """Return in words when measurements stop. noise: accepted relative error of a median. l2: ``cold`` or ``warm``."""
    cache = {
        "cold": "cold L2 (flushed before every run)",
        "warm": f"warm L2 (launches below {SHORT_MS} ms timed several at a time)",
    }
    return (
        f"{LEAST_RUNS} to {MOST_RUNS} runs, until half the 95 % interval of the median is within {noise:.1%} of it "
        f"(after {SECONDS:g} s: {PATIENCE} runs at least); {cache[l2]}"
    )


# --- a traced run: which copies and kernels ran at the same time, and what limited it ---------------------------------


class Timeline(Frozen):
    """One traced run: intervals of host-to-device copies, kernels and device-to-host copies.

    enqueue_share: time in which the host enqueued ÷ time until its results were there, 0..1.
    """

    h2d: Sequence[Interval]
    kernels: Sequence[Interval]
    d2h: Sequence[Interval]
    enqueue_share: float = 0.0


# If enqueueing took this share of a run or more, the device was waiting for the host.
ENQUEUE_BOUND = 0.9


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of the intervals, disjoint and in order."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        elif stop > start:
            merged.append((start, stop))
    return merged


def covered_ms(intervals: Iterable[Interval]) -> float:
    """Return the time in ms that at least one interval covers."""
    return sum(stop - start for start, stop in merge_intervals(intervals))


def overlap_ms(left: Iterable[Interval], right: Iterable[Interval]) -> float:
    """Return the time in ms that intervals of both ``left`` and ``right`` cover."""
    left, right = merge_intervals(left), merge_intervals(right)
    return covered_ms(left) + covered_ms(right) - covered_ms([*left, *right])


def trim_overlapping_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals of copies in one direction, shortened so that each begins when the previous one ends.

    The copies share one copy engine. The event before a copy fires when the copy may begin; the copy may still wait for
    the engine then, and this wait is not part of the copy.
    """
    trimmed: list[Interval] = []
    free_from = float("-inf")
    for start, stop in sorted(intervals, key=lambda interval: interval[1]):
        trimmed.append((max(start, free_from), stop))
        free_from = stop
    return trimmed


def describe_bottleneck(use: Pipeline) -> str:
    """Return one sentence about what limits the run, with the shares that show it."""
    shares = f"kernels ran {use['kernel_share']:.0%} of the run, copies {use['copy_share']:.0%}"
    match use["limit"]:
        case "compute":
            return f"limited by compute: {shares} ({use['overlap']:.0%} of them behind kernels); faster kernels help"
        case "copy":
            return f"limited by the copies: {shares}; fewer bytes or a faster bus help, faster kernels do not"
        case _:
            return (
                f"limited by enqueueing: the device was idle {use['idle_share']:.0%} of the run, the host was "
                f"enqueueing for {use['enqueue_share']:.0%} of it; larger chunks, fewer launches or a graph help"
            )


def pipeline_usage(timeline: Timeline) -> Pipeline:
    """Return the record of a traced run: overlap of copies and kernels, their shares, and what limits the run.

    The limit is enqueueing if it took nearly all of the run, otherwise the longest of kernels, copies and idle time.
    Time between the launches of one chunk counts as kernel time: events mark only where phases begin.
    Raises ValueError for a timeline that covers no time.
    """
    h2d, d2h = trim_overlapping_intervals(timeline.h2d), trim_overlapping_intervals(timeline.d2h)
    copies, kernels = merge_intervals([*h2d, *d2h]), merge_intervals(timeline.kernels)
    busy = merge_intervals([*copies, *kernels])
    span = busy[-1][1] - busy[0][0] if busy else 0.0
    if span <= 0:
        raise ValueError("a timeline must cover some time")
    shares: dict[Limit, float] = {
        "compute": covered_ms(kernels) / span,
        "copy": covered_ms(copies) / span,
        "enqueue": 1 - covered_ms(busy) / span,
    }
    return {
        "span_ms": span,
        "h2d_ms": covered_ms(h2d),
        "kernels_ms": covered_ms(kernels),
        "d2h_ms": covered_ms(d2h),
        "overlap": overlap_ms(copies, kernels) / covered_ms(copies) if copies else 0.0,
        "kernel_share": shares["compute"],
        "copy_share": shares["copy"],
        "idle_share": shares["enqueue"],
        "enqueue_share": timeline.enqueue_share,
        "limit": "enqueue" if timeline.enqueue_share > ENQUEUE_BOUND else max(shares, key=lambda name: shares[name]),
    }
