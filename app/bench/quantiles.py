"""Quantiles as LoadGen takes them: always one of the samples, none in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from app.runtime.result import supported

SHOWN = (10, 50, 90, 99)


def nearest_rank(samples: Sequence[float], q: int) -> float:
    """The smallest sample that at least ``q`` percent (1..100) of the samples do not exceed."""
    return sorted(samples)[ceil(len(samples) * q / 100) - 1]


def summary(samples: Sequence[float]) -> dict[str, float | None]:
    """p10, p50, p90 and p99 by nearest rank, None where there are too few samples; and the number of samples."""
    count = len(samples)
    return {**{f"p{q}": nearest_rank(samples, q) if supported(q, count) else None for q in SHOWN}, "runs": count}
