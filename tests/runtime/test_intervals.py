"""Overlap, shares and verdicts of timelines: cases worked by hand, and brute force on a grid."""

import random
from dataclasses import astuple
from itertools import pairwise

import pytest

from app.runtime.overlap import Interval, Timeline, length, merge, one_at_a_time, overlap, usage


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([(1, 2)], [(1, 2)]),
        ([(3, 4), (1, 2)], [(1, 2), (3, 4)]),
        ([(1, 3), (2, 5)], [(1, 5)]),
        ([(1, 2), (2, 3)], [(1, 3)]),  # touching
        ([(1, 9), (2, 3), (4, 5)], [(1, 9)]),  # nested: the later, shorter ones must not cut it
        ([(1, 9), (2, 3), (8, 10)], [(1, 10)]),
        ([(2, 2)], []),  # no time at all
        ([(1, 3), (2, 2), (5, 5)], [(1, 3)]),
        ([(0, 1), (0, 1), (0, 1)], [(0, 1)]),
    ],
)
def test_merge(intervals: list[Interval], expected: list[Interval]) -> None:
    assert merge(intervals) == expected
    assert length(intervals) == sum(stop - start for start, stop in expected)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([], [(0, 9)], 0),
        ([(0, 2)], [(2, 4)], 0),
        ([(0, 3)], [(2, 4)], 1),
        ([(0, 10)], [(1, 2), (4, 6)], 3),
        ([(0, 10), (5, 12)], [(8, 20), (9, 11)], 4),  # what one side does twice counts once
        ([(0, 1), (2, 3), (4, 5)], [(0, 5)], 3),
    ],
)
def test_overlap(left: list[Interval], right: list[Interval], expected: float) -> None:
    assert overlap(left, right) == expected
    assert overlap(right, left) == expected


def test_overlap_takes_iterators() -> None:
    assert overlap(iter([(0.0, 3.0)]), iter([(2.0, 4.0)])) == 1


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([(0, 1), (2, 3)], [(0, 1), (2, 3)]),
        # Three copies may begin at once, but their engine does one after the other.
        ([(0, 1), (0, 2), (0, 3)], [(0, 1), (1, 2), (2, 3)]),
        # Whichever ends first was copied first, whenever it was let go.
        ([(0, 4), (1, 2)], [(1, 2), (2, 4)]),
        ([(0, 2), (1, 5), (6, 7)], [(0, 2), (2, 5), (6, 7)]),
    ],
)
def test_one_at_a_time(intervals: list[Interval], expected: list[Interval]) -> None:
    assert one_at_a_time(intervals) == expected


@pytest.mark.parametrize("seed", range(40))
def test_brute_force_on_a_grid(seed: int) -> None:
    rng = random.Random(seed)

    def some() -> list[Interval]:
        starts = [rng.randrange(60) for _ in range(rng.randrange(12))]
        return [(start, start + rng.randrange(8)) for start in starts]

    def cells(intervals: list[Interval]) -> set[int]:
        return {cell for start, stop in intervals for cell in range(int(start), int(stop))}

    left, right = some(), some()
    assert length(left) == len(cells(left))
    assert overlap(left, right) == len(cells(left) & cells(right))
    merged = merge(left)
    assert cells(merged) == cells(left)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    trimmed = one_at_a_time(left)
    assert len(trimmed) == len(left) and cells(trimmed) <= cells(left)
    assert sum(stop - start for start, stop in trimmed) == length(trimmed), "two copies at once"


def test_compute_bound() -> None:
    """Three streams: after the first copy in, kernels never stop; copies hide behind them save at both ends."""
    found = usage(
        Timeline(h2d=[(0, 1), (1, 2), (2, 3)], kernels=[(1, 4), (4, 7), (7, 10)], d2h=[(4, 5), (7, 8), (10, 11)])
    )
    assert astuple(found)[:4] == (11, 3, 9, 3)
    assert found.overlap == pytest.approx(4 / 6)
    assert (found.kernel_share, found.copy_share, found.idle_share) == pytest.approx((9 / 11, 6 / 11, 0))
    assert found.limit == "compute" and found.verdict.startswith("limited by compute: kernels ran 82%")
    assert "(67% of them behind kernels)" in found.verdict


def test_copy_bound() -> None:
    """Copies in queue for one engine: their events all fired at the start, which must not count as copying."""
    found = usage(
        Timeline(h2d=[(0, 4), (0, 8), (0, 12)], kernels=[(4, 5), (8, 9), (12, 13)], d2h=[(5, 5.5), (9, 9.5), (13, 14)])
    )
    assert astuple(found)[:4] == (14, 12, 3, 2)
    # Copying 0..12 and 13..14, kernels at 4..5, 8..9 and 12..13: two of the thirteen.
    assert found.overlap == pytest.approx(2 / 13)
    assert (found.kernel_share, found.copy_share, found.idle_share) == pytest.approx((3 / 14, 13 / 14, 0))
    assert found.limit == "copy" and found.verdict.startswith(
        "limited by the copies: kernels ran 21% of the run, copies 93%"
    )


def test_enqueue_bound() -> None:
    """Small chunks, each alone on the device, with the host's pauses between them; the clock need not begin at 0."""
    chunks = range(100, 150, 10)
    found = usage(
        Timeline(
            h2d=[(at, at + 1) for at in chunks],
            kernels=[(at + 1, at + 3) for at in chunks],
            d2h=[(at + 3, at + 4) for at in chunks],
        )
    )
    assert astuple(found)[:4] == (44, 5, 10, 5)
    assert found.overlap == 0
    assert found.idle_share == pytest.approx(24 / 44)
    assert found.limit == "enqueue" and "idle 55% of the run" in found.verdict


def test_a_device_that_is_done_when_the_host_is_waited_for_it() -> None:
    """One chunk: its phases follow one another without a gap, however long the host took between them."""
    phases = {"h2d": [(0.0, 0.01)], "kernels": [(0.01, 0.05)], "d2h": [(0.05, 0.06)]}
    assert usage(Timeline(**phases, enqueue_share=0.5)).limit == "compute"
    found = usage(Timeline(**phases, enqueue_share=0.97))
    assert found.limit == "enqueue" and "enqueueing for 97% of it" in found.verdict


def test_a_copy_that_waited_for_the_engine_was_not_copying() -> None:
    """Let go at 0, but queued behind a copy that had to wait until 5: three milliseconds of copies, not eight."""
    found = usage(Timeline(h2d=[(0, 8), (5, 6)], kernels=[(0, 5)], d2h=[(6, 9), (8, 8.5)]))
    assert (found.h2d_ms, found.d2h_ms, found.overlap) == (3, 0.5 + 0.5, 0)


def test_without_copies() -> None:
    found = usage(Timeline(h2d=[], kernels=[(0, 2)], d2h=[]))
    assert (found.overlap, found.kernel_share, found.copy_share, found.limit) == (0, 1, 0, "compute")


@pytest.mark.parametrize("kernels", [[], [(3, 3)]])
def test_a_timeline_without_time_is_a_bug(kernels: list[Interval]) -> None:
    with pytest.raises(ValueError, match="must cover some time"):
        usage(Timeline([], kernels, []))


@pytest.mark.parametrize("seed", range(20))
def test_shares_stay_within_bounds(seed: int) -> None:
    rng = random.Random(seed)

    def some(count: int) -> list[Interval]:
        starts = [rng.random() for _ in range(count)]
        return [(start, start + rng.random() / 10) for start in starts]

    found = usage(Timeline(some(6), some(6), some(6)))
    for share in (found.overlap, found.kernel_share, found.copy_share, found.idle_share):
        assert -1e-12 <= share <= 1 + 1e-12
    assert max(found.kernel_share, found.copy_share) <= 1 - found.idle_share + 1e-12
