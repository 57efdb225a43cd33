"""The host's clock, and all that reads it: spans of time, timed calls, deadlines. Seconds, unless a name says ms."""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")
now = perf_counter  # seconds since some moment; it never goes back, and all processes of a machine agree


class Timer:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._begun = self._last = now()

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return now() - self._begun

    def lap(self) -> float:
        """Return the seconds since the last lap, or since it was made."""
        before, self._last = self._last, now()
        return self._last - before


class Deadline:
    """A deadline ``seconds`` after its creation; they may be infinite."""

    def __init__(self, seconds: float) -> None:
        self._end = now() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 once it is over."""
        return max(self._end - now(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the deadline is over."""
        return now() >= self._end

    def extend(self, seconds: float, most: float) -> None:
        """Move the deadline back by ``seconds``, to at most ``most`` from now."""
        self._end = min(self._end + seconds, now() + most)


def clocked(call: Callable[[], Result]) -> tuple[Result, float]:
    """Call once; return the result of the call and its duration in ms."""
    start = now()
    result = call()
    return result, (now() - start) * 1e3


def host_timed(call: Callable[[], object], repeat: int, warmup: int = 0) -> tuple[float, ...]:
    """Return the ms of ``repeat`` calls, after ``warmup`` untimed ones."""
    for _ in range(warmup):
        call()
    return tuple(clocked(call)[1] for _ in range(repeat))
