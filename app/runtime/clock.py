"""Measure time by the host's clock, from a call until it returns. All times in milliseconds."""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from app.runtime.result import Timing

Result = TypeVar("Result")


def clocked(call: Callable[[], Result]) -> tuple[Result, float]:
    """Call once; return the result of the call and its duration in ms."""
    start = perf_counter()
    result = call()
    return result, (perf_counter() - start) * 1e3


def host_timed(call: Callable[[], object], repeat: int, warmup: int = 0) -> Timing:
    """Time ``call`` ``repeat`` times, after ``warmup`` untimed calls."""
    for _ in range(warmup):
        call()
    return Timing(tuple(clocked(call)[1] for _ in range(repeat)))
