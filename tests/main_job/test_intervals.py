"""Test overlaps, shares and verdicts of traced runs: cases computed by hand, and random intervals on a grid."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.main_job.statistics import (
    Interval,
    Timeline,
    covered_ms,
    describe_bottleneck,
    merge_intervals,
    overlap_ms,
    pipeline_usage,
    trim_overlapping_intervals,
)
from app.records.report import Pipeline

# On a small grid, so that intervals touch, nest and repeat, and some are empty.
INTERVALS = st.lists(
    st.builds(lambda start, ms: (start, start + ms), st.integers(0, 30), st.integers(0, 9)), max_size=12
)


def covered_cells(intervals: list[Interval]) -> set[int]:
    """Return the milliseconds, as whole numbers, that the intervals cover."""
    return {cell for start, stop in intervals for cell in range(int(start), int(stop))}


@given(INTERVALS, INTERVALS)
def test_union_and_overlap(left: list[Interval], right: list[Interval]) -> None:
    """Time that two intervals of one list cover counts once."""
    merged = merge_intervals(left)
    assert covered_cells(merged) == covered_cells(left) and covered_ms(left) == len(covered_cells(left))
    assert all(start < stop for start, stop in merged) and all(a[1] < b[0] for a, b in pairwise(merged))
    assert overlap_ms(left, right) == overlap_ms(right, left) == len(covered_cells(left) & covered_cells(right))


@given(INTERVALS)
def test_no_two_copies_run_at_once(intervals: list[Interval]) -> None:
    trimmed = trim_overlapping_intervals(intervals)
    assert len(trimmed) == len(intervals) and covered_cells(trimmed) <= covered_cells(intervals)
    assert sum(stop - start for start, stop in trimmed) == covered_ms(trimmed)


def test_overlap_takes_iterators() -> None:
    assert overlap_ms(iter([(0.0, 3.0)]), iter([(2.0, 4.0)])) == 1


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([(0, 1), (2, 3)], [(0, 1), (2, 3)]),
        # Three copies may begin at once, but the copy engine does one after another.
        ([(0, 1), (0, 2), (0, 3)], [(0, 1), (1, 2), (2, 3)]),
        # The copy that ends first was done first, whenever it was enqueued.
        ([(0, 4), (1, 2)], [(1, 2), (2, 4)]),
        ([(0, 2), (1, 5), (6, 7)], [(0, 2), (2, 5), (6, 7)]),
    ],
)
def test_serialised_copies(intervals: list[Interval], expected: list[Interval]) -> None:
    assert trim_overlapping_intervals(intervals) == expected


CHUNKS = range(100, 150, 10)
USAGES = {
    # Three streams: after the first copy in, kernels never stop; all but the first and last copies hide behind them.
    "compute": (
        Timeline(h2d=[(0, 1), (1, 2), (2, 3)], kernels=[(1, 4), (4, 7), (7, 10)], d2h=[(4, 5), (7, 8), (10, 11)]),
        (11, 3, 9, 3, 4 / 6, 9 / 11, 6 / 11, 0, 0, "compute"),
        "by compute: kernels ran 82% of the run, copies 55% (67% of them behind kernels); faster kernels help",
    ),
    # Copies in queue for one engine: their events all fired at the start, which must not count as copying.
    # Copying 0..12 and 13..14, kernels at 4..5, 8..9 and 12..13: two of the thirteen.
    "copy": (
        Timeline(h2d=[(0, 4), (0, 8), (0, 12)], kernels=[(4, 5), (8, 9), (12, 13)], d2h=[(5, 5.5), (9, 9.5), (13, 14)]),
        (14, 12, 3, 2, 2 / 13, 3 / 14, 13 / 14, 0, 0, "copy"),
        "by the copies: kernels ran 21% of the run, copies 93%; fewer bytes or a faster bus help, faster kernels "
        "do not",
    ),
    # Small chunks, each alone on the device, with the host's pauses between them; the clock need not begin at 0.
    "enqueue": (
        Timeline(
            h2d=[(at, at + 1) for at in CHUNKS],
            kernels=[(at + 1, at + 3) for at in CHUNKS],
            d2h=[(at + 3, at + 4) for at in CHUNKS],
        ),
        (44, 5, 10, 5, 0, 10 / 44, 10 / 44, 24 / 44, 0, "enqueue"),
        "by enqueueing: the device was idle 55% of the run, the host was enqueueing for 0% of it; larger chunks, fewer "
        "launches or a graph help",
    ),
    # Enqueued at 0, but behind a copy that had to wait until 5: three milliseconds of copies, not eight.
    "queue": (
        Timeline(h2d=[(0, 8), (5, 6)], kernels=[(0, 5)], d2h=[(6, 9), (8, 8.5)]),
        (9, 3, 5, 1, 0, 5 / 9, 4 / 9, 0, 0, "compute"),
        "by compute: kernels ran 56% of the run, copies 44% (0% of them behind kernels); faster kernels help",
    ),
    "without copies": (
        Timeline(h2d=[], kernels=[(0, 2)], d2h=[]),
        (2, 0, 2, 0, 0, 1, 0, 0, 0, "compute"),
        "by compute: kernels ran 100% of the run, copies 0% (0% of them behind kernels); faster kernels help",
    ),
}


@pytest.mark.parametrize(("timeline", "expected", "told"), USAGES.values(), ids=USAGES)
def test_usage_of_the_pipeline(timeline: Timeline, expected: tuple[object, ...], told: str) -> None:
    found = pipeline_usage(timeline)
    assert (*found,) == (*Pipeline.__annotations__,) and (*found.values(),) == expected
    assert describe_bottleneck(found) == f"limited {told}"


def test_a_run_limited_by_enqueueing() -> None:
    """The device is never idle between phases, but finishes before the host has enqueued all of the run."""
    phases = {"h2d": [(0.0, 0.01)], "kernels": [(0.01, 0.05)], "d2h": [(0.05, 0.06)]}
    assert pipeline_usage(Timeline(**phases, enqueue_share=0.5))["limit"] == "compute"
    found = pipeline_usage(Timeline(**phases, enqueue_share=0.97))
    assert found["limit"] == "enqueue" and "enqueueing for 97% of it" in describe_bottleneck(found)


@pytest.mark.parametrize("kernels", [[], [(3, 3)]])
def test_a_timeline_without_time_is_a_bug(kernels: list[Interval]) -> None:
    with pytest.raises(ValueError, match="must cover some time"):
        pipeline_usage(Timeline([], kernels, []))


FLOAT_INTERVALS = st.lists(
    st.builds(lambda start, ms: (start, start + ms), st.floats(0, 1), st.floats(0.001, 0.1)), min_size=1, max_size=6
)


@given(FLOAT_INTERVALS, FLOAT_INTERVALS, FLOAT_INTERVALS)
def test_shares_stay_within_bounds(h2d: list[Interval], kernels: list[Interval], d2h: list[Interval]) -> None:
    found = pipeline_usage(Timeline(h2d, kernels, d2h))
    for share in (found["overlap"], found["kernel_share"], found["copy_share"], found["idle_share"]):
        assert -1e-12 <= share <= 1 + 1e-12
    assert max(found["kernel_share"], found["copy_share"]) <= 1 - found["idle_share"] + 1e-12
