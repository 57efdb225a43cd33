"""Analyse a traced run: which copies and kernels ran at the same time, and what limited the run. Pure functions.

An interval is (start, stop) in milliseconds; all intervals have the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from app.base.frozen import Frozen

if TYPE_CHECKING:
    from app.records.report import Pipeline

Interval = tuple[float, float]
Limit = Literal["compute", "copy", "enqueue"]


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
    """Return the time in ms that both sides cover at once."""
    left, right = merge_intervals(left), merge_intervals(right)
    return covered_ms(left) + covered_ms(right) - covered_ms([*left, *right])


def serialise_intervals(intervals: Iterable[Interval]) -> list[Interval]:
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
    """Return the overlap of copies and kernels, their shares, and the limit of a run, for the report.

    The limit is the host if enqueueing took nearly all of the run, otherwise the longest of kernels, copies and idle
    time. Time between the launches of one chunk counts as kernel time: events mark only where phases begin.
    """
    h2d, d2h = serialise_intervals(timeline.h2d), serialise_intervals(timeline.d2h)
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
