"""Test intervals of changes, against Student's t and by false alarms and finds in simulated runs; and verdicts."""

from collections.abc import Callable, Sequence
from math import exp, log, sqrt
from statistics import mean, stdev

import numpy as np
import pytest

from app.lab.compare.interval import (
    LEAST_SAMPLES,
    PARTS,
    VERDICTS,
    Bounds,
    change_verdict,
    confidence_intervals,
    exceeds_allowed_slowdown,
    percent_change,
)
from app.lab.compare.rows import TimedRow
from app.main_job.statistics import median

# Student's 97.5 % quantiles by degrees of freedom, and the quantiles that ten independent rows need together (SciPy's
# t.ppf of 0.975 and of (1 + 0.95**0.1) / 2).
STUDENT = {2: 4.3027, 4: 2.7764, 8: 2.3060, 18: 2.1009}
TEN_ROWS = {8: 3.8164, 18: 3.1861}
Draw = Callable[[np.random.Generator, int], np.ndarray]


def make_run(samples: Sequence[float]) -> TimedRow:
    return TimedRow("a row", median(samples), tuple(samples))


def bare_run(time: float) -> TimedRow:
    """Return a run without samples."""
    return TimedRow("a row", time, ())


def excludes_zero(bounds: Bounds | None) -> bool:
    assert bounds is not None and bounds[0] <= bounds[1]
    return not bounds[0] <= 0 <= bounds[1]


def draw_correlated(share: float) -> Draw:
    """Return a function that draws normal noise of which each value keeps ``share`` of the previous one."""

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        values = rng.standard_normal(count)
        for at in range(1, count):
            values[at] = share * values[at - 1] + sqrt(1 - share**2) * values[at]
        return values

    return draw


def draw_in_blocks(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return samples with a common deviation in every block of four."""
    return 1 + np.repeat(0.05 * rng.standard_normal(-(-count // 4)), 4)[:count] + 0.02 * rng.standard_normal(count)


SAMPLES: dict[str, tuple[Draw, int]] = {
    "white, few": (lambda rng, count: 1 + 0.05 * rng.standard_normal(count), 5),
    "skewed": (lambda rng, count: 1 + 0.2 * rng.exponential(1, count), 20),
    "skewed, far outliers": (lambda rng, count: 1 + 0.05 * rng.pareto(1.5, count), 20),
    "steps of the clock": (lambda rng, count: np.round(20 + 0.5 * rng.standard_normal(count)), 20),
    "correlated, many": (lambda rng, count: np.exp(0.05 * draw_correlated(0.9)(rng, count)), 100),
    "correlated and skewed": (lambda rng, count: 1 + 0.05 * np.exp(draw_correlated(0.7)(rng, count)), 20),
    "in blocks": (draw_in_blocks, 20),
}


@pytest.mark.grid
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("rows", "commands"), [(1, 200), (8, 100)])
def test_false_alarms_of_one_report_per_side(name: str, rows: int, commands: int) -> None:
    """At most 5 % of comparisons of two equal runs find any row slower or faster."""
    draw, count = SAMPLES[name]
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(commands):
        pairs = [([make_run(draw(rng, count).tolist())], [make_run(draw(rng, count).tolist())]) for _ in range(rows)]
        alarms += any(map(excludes_zero, confidence_intervals(pairs)))
    assert alarms <= 0.05 * commands


def changed_rows(rng: np.random.Generator, draw: Draw, runs: int, rows: int, common: bool, slower: float) -> list[bool]:
    """Return which rows are found changed. common: all rows of a run deviate alike. slower: true change in percent."""
    levels = np.stack([draw(rng, 2 * runs) for _ in range(rows)])
    if common:
        levels = levels[:1] + 0.001 * rng.standard_normal(levels.shape)
    levels[:, runs:] += log(1 + slower / 100)
    times = np.exp(levels).tolist()
    sides = [([*map(bare_run, row[:runs])], [*map(bare_run, row[runs:])]) for row in times]
    return [*map(excludes_zero, confidence_intervals(sides))]


LEVELS: dict[str, Draw] = {
    "normal": lambda rng, count: 0.01 * rng.standard_normal(count),
    "skewed": lambda rng, count: np.log(1 + 0.05 * rng.exponential(1, count)),
    "one run in five is slow": lambda rng, count: 0.3 * (rng.random(count) < 0.2) + 0.01 * rng.standard_normal(count),
    "far outliers": lambda rng, count: np.log(1 + 0.02 * rng.pareto(1.5, count)),
}


@pytest.mark.grid
@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize("name", LEVELS)
def test_false_alarms_of_five_reports_per_side(name: str, rows: int) -> None:
    """Of 200 comparisons of equal programs 5 % find a row slower or faster: at most 19, by chance (3 sigma)."""
    rng = np.random.default_rng(2)
    assert sum(any(changed_rows(rng, LEVELS[name], 5, rows, False, slower=0)) for _ in range(200)) <= 19


def test_three_percent_are_found_by_five_reports_a_side() -> None:
    """Runs scatter by 1 %. The change is found in a single row, and in each of ten rows that deviate alike in a run."""
    for rows, common, least in ((1, False, 190), (10, True, 180)):
        rng = np.random.default_rng(3)
        finds = [changed_rows(rng, LEVELS["normal"], 5, rows, common, slower=3) for _ in range(200)]
        assert all(sum(row) >= least for row in zip(*finds, strict=True))


def test_a_change_is_found_in_two_runs_of_twenty_samples() -> None:
    """The change is 10 % and the noise 3 %."""
    rng = np.random.default_rng(4)
    draws = [[make_run((by * (1 + 0.03 * rng.standard_normal(20))).tolist()) for by in (1, 1.1)] for _ in range(100)]
    assert sum(excludes_zero(*confidence_intervals([([before], [after])])) for before, after in draws) >= 95


@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (5, 5), (4, 16)])
def test_one_row_of_several_reports_has_students_interval(runs: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    before, after = ((0.5 + 0.02 * rng.standard_normal(count)).tolist() for count in runs)
    (bounds,) = confidence_intervals([([*map(bare_run, before)], [*map(bare_run, after)])])
    a, b = ([*map(log, side)] for side in (before, after))
    freedom = len(a) + len(b) - 2
    pooled = ((len(a) - 1) * stdev(a) ** 2 + (len(b) - 1) * stdev(b) ** 2) / freedom
    reach = STUDENT[freedom] * sqrt(pooled * (1 / len(a) + 1 / len(b)))
    assert bounds is not None
    low, high = (log(1 + bound / 100) for bound in bounds)
    assert (low + high) / 2 == pytest.approx(mean(b) - mean(a))
    assert (high - low) / 2 == pytest.approx(reach, rel=0.04)  # of DRAWS


@pytest.mark.parametrize("runs", [5, 10])
def test_several_rows_have_wider_intervals_unless_they_are_equal(runs: int) -> None:
    rng = np.random.default_rng(6)
    widths = []
    for _ in range(20):
        apart = np.exp(0.01 * rng.standard_normal((10, 2 * runs))).tolist()
        rows = [([*map(bare_run, row[:runs])], [*map(bare_run, row[runs:])]) for row in apart]
        one, many, same = (confidence_intervals(some)[0] for some in (rows[:1], rows, rows[:1] * 10))
        assert same == one and one is not None and many is not None
        widths.append(log((100 + many[1]) / (100 + many[0])) / log((100 + one[1]) / (100 + one[0])))
    freedom = 2 * runs - 2
    assert mean(widths) == pytest.approx(TEN_ROWS[freedom] / STUDENT[freedom], rel=0.04)


def test_the_widest_of_halves_thirds_and_fifths_counts() -> None:
    """Samples with one step in the middle have the interval of their halves."""
    before, after = [make_run([1.0] * 30)], [make_run([exp(-0.1)] * 15 + [exp(0.1)] * 15)]
    (bounds,) = confidence_intervals([(before, after)])
    assert bounds is not None
    reach = (log(1 + bounds[1] / 100) - log(1 + bounds[0] / 100)) / 2
    assert reach == pytest.approx(STUDENT[2] * 0.1, rel=0.04)
    assert PARTS[2] == pytest.approx(STUDENT[2] / STUDENT[8], rel=1e-3)
    assert PARTS[3] == pytest.approx(STUDENT[4] / STUDENT[8], rel=1e-3)


def test_few_samples_have_no_interval_and_equal_samples_no_width() -> None:
    enough = [1.0] * LEAST_SAMPLES
    assert confidence_intervals([]) == []
    few = [([make_run(enough)], [make_run(enough[1:])]), ([bare_run(1)], [bare_run(2)])]
    assert confidence_intervals(few) == [None, None]
    (bounds,) = confidence_intervals([([make_run(enough)], [make_run([1.5] * LEAST_SAMPLES)])])
    assert bounds == pytest.approx((50, 50))
    rows = [([make_run([1.0, 2.0, 3.0] * 9)], [make_run([1.0, 2.0, 3.0] * 7)])]
    assert confidence_intervals(rows) == confidence_intervals(rows)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("runs", [1, 2])
def test_extreme_times_have_finite_intervals(runs: int) -> None:
    shortest, longest = ([*map(make_run, [[time] * 5] * runs)] for time in (1e-9, 1e12))
    mixed = [make_run([1e-9, 1e12] * 5)] * runs
    for before, after in ((shortest, longest), (longest, shortest), (mixed, longest), (shortest, mixed)):
        for bounds in confidence_intervals([(before, after)] * 3):
            assert bounds is not None and -100 <= bounds[0] <= bounds[1] < 1.1e23


def test_equal_levels_on_both_sides_are_the_same() -> None:
    (bounds,) = confidence_intervals([([bare_run(2)] * 3, [bare_run(2)] * 3)])
    assert bounds == (0, 0) and change_verdict(percent_change(2, 2), bounds, several=True) == "same"


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
def test_verdicts(change: float, bounds: Bounds | None, expected: str, fails: bool) -> None:
    assert change_verdict(change, bounds, several=True) == expected and expected in VERDICTS
    of_one = change_verdict(change, bounds, several=False)
    assert of_one in VERDICTS and of_one == (f"{expected} run" if expected in ("slower", "faster") else expected)
    assert exceeds_allowed_slowdown(change, bounds, 3) is fails
