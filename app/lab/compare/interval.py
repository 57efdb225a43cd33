"""Compute how much slower rows became: changes in percent, simultaneous 95 % intervals and verdicts."""

from collections.abc import Sequence
from functools import lru_cache
from math import expm1, log, sqrt
from statistics import geometric_mean, median

import numpy as np

from app.lab.compare.rows import LEAST_TIME, MOST_TIME, TimedRow

LEAST_SAMPLES = 5  # needed on either side for an interval from one run per side
DRAWS = 10_000
RELEVANT = 1.0  # percent; smaller changes count as the same
SLOWER, FASTER, SAME, UNKNOWN = "slower", "faster", "same", "unknown"
ONE_RUN = " run"  # ends the verdict where each side has only one run
VERDICTS = (SLOWER, FASTER, SLOWER + ONE_RUN, FASTER + ONE_RUN, SAME, UNKNOWN)
# Number of parts into which a run is divided → Student's 97.5 % quantile for two runs, ÷ that for MOST_PARTS parts.
MOST_PARTS = 5
PARTS = {MOST_PARTS: 1.0, 3: 2.776 / 2.306, 2: 4.303 / 2.306}
FARTHEST = log(MOST_TIME / LEAST_TIME)  # no two times that are read differ by a larger factor

Runs = Sequence[TimedRow]  # the same row in each report of one side
Bounds = tuple[float, float]  # of an interval, in percent


def percent_change(before: float, after: float) -> float:
    """Return by how many percent ``after`` exceeds ``before``, which must be positive."""
    return (after / before - 1) * 100


def median_of_side(runs: Runs) -> float:
    """Return a row's time before or after the change: its run's median, or the geometric mean of runs' medians."""
    return runs[0].median if len(runs) == 1 else geometric_mean(run.median for run in runs)


def confidence_intervals(rows: Sequence[tuple[Runs, Runs]]) -> list[Bounds | None]:
    """Return the 95 % interval of each row's change from the first side to the second, in percent.

    If nothing changed, all intervals together contain 0 in 95 % of cases. A row with too few samples gets None. Each
    side has one report, or each has two or more. Equal arguments give equal intervals.

    With several reports per side, the runs' medians are the observations, so the interval includes the scatter between
    runs. With one row it is Student's t confidence interval for the difference between the means of their logarithms.

    With one report per side, only the noise within the runs is known. Successive samples are correlated, so the
    observations are medians of consecutive parts of a run: halves, thirds and fifths. The result is the
    widest of these intervals. It is too narrow if the parts are still correlated.
    """
    measured = [_log_times_and_standard_error(*row) for row in rows]
    known = [values for values, _ in filter(None, measured)]
    critical = _critical_value(known) if known else 0.0
    found: list[Bounds | None] = []
    for row, observed in zip(rows, measured, strict=True):
        if observed is None:
            found.append(None)
            continue
        change, reach = log(median_of_side(row[1])) - log(median_of_side(row[0])), critical * observed[1]
        low, high = max(change - reach, -FARTHEST), min(change + reach, FARTHEST)
        found.append((expm1(low) * 100, expm1(high) * 100))
    return found


def _log_times_and_standard_error(before: Runs, after: Runs) -> tuple[np.ndarray, float] | None:
    """Return the logarithms of all times to compare, (N,), and the change's standard error; None for too few times."""
    if len(before) > 1:
        sides = [np.log([run.median for run in runs]) for runs in (before, after)]
        return np.concatenate(sides), _standard_error(*sides)
    if min(len(before[0].samples), len(after[0].samples)) < LEAST_SAMPLES:
        return None
    cut = {parts: [_part_medians(run.samples, parts) for run in (before[0], after[0])] for parts in PARTS}
    return np.concatenate(cut[MOST_PARTS]), max(PARTS[parts] * _standard_error(*sides) for parts, sides in cut.items())


def _part_medians(samples: Sequence[float], parts: int) -> np.ndarray:
    return np.array([median(part.tolist()) for part in np.array_split(np.log(samples), parts)])


def _standard_error(before: np.ndarray, after: np.ndarray) -> float:
    """Return the standard error of the difference of the two means, if both sides have the same variance."""
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
    return sqrt(squares / (len(before) + len(after) - 2) * (1 / len(before) + 1 / len(after)))


def _critical_value(rows: Sequence[np.ndarray]) -> float:
    """Return how many standard errors the largest change of all rows exceeds in 5 % of cases if nothing changed.

    rows: observations of both sides, (N,) each. This is a rotation test (Langsrud 2005, doi:10.1007/s11222-005-4789-5):
    if nothing changed, every direction from one side to the other is equally likely, so changes are drawn in random
    directions. Rows of one run rise and fall together; unlike Bonferroni's correction, this test does not treat them as
    independent.
    """
    values = np.stack(rows)
    centred = values - values.mean(axis=1, keepdims=True)
    directions = _random_unit_vectors(values.shape[1])
    most = np.zeros(DRAWS)
    for row, length in zip(centred, np.linalg.norm(centred, axis=1), strict=True):
        if length:
            most = np.maximum(most, abs(directions @ (row / length)))
    share = float(np.quantile(most, 0.95)) ** 2
    return sqrt((values.shape[1] - 2) * share / max(1 - share, 1e-12))


@lru_cache(maxsize=1)
def _random_unit_vectors(count: int) -> np.ndarray:
    """Return DRAWS random unit vectors, (DRAWS, count), whose components sum to 0."""
    drawn = np.random.default_rng(0).standard_normal((DRAWS, count))
    drawn -= drawn.mean(axis=1, keepdims=True)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def change_verdict(change: float, bounds: Bounds | None, several: bool) -> str:
    """Return ``slower`` or ``faster`` for a change of at least 1 % whose interval excludes 0, else ``same``.

    If ``bounds`` (the interval) is None, return ``unknown``. change: in percent. several: whether each side has several
    reports; otherwise the verdict says that it concerns only the two runs.
    """
    if bounds is None:
        return UNKNOWN
    if abs(change) < RELEVANT or bounds[0] <= 0 <= bounds[1]:
        return SAME
    return (SLOWER if change > 0 else FASTER) + ("" if several else ONE_RUN)


def exceeds_allowed_slowdown(change: float, bounds: Bounds | None, most: float) -> bool:
    """Return whether ``change`` is over ``most`` percent and its interval, if there is one, lies above 0."""
    return change > most and (bounds is None or bounds[0] > 0)
