"""Read the host's clock: timers, timed calls and deadlines. Times are in seconds unless a name ends in ms."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")
now = perf_counter  # seconds since some moment; it never goes back, and all processes of a machine agree


class Timer:
    """A timer that starts when it is created."""

    def __init__(self) -> None:
        self._begun = self._last = now()

    @property
    def seconds(self) -> float:
        """Return the seconds since the timer was created."""
        return now() - self._begun

    def lap(self) -> float:
        """Return the seconds since the last call, or since the timer was created."""
        before, self._last = self._last, now()
        return self._last - before


class Stopwatch:
    """Measure the steps of a program's start in ms. spent: maps a step's name to its ms so far, in order of first use.

    The stopwatch of main.py counts from the creation of the process: ``start`` is the interpreter's start, ``import``
    the time from then on. In other programs it starts when it is created.
    """

    def __init__(self) -> None:
        self._last = now()
        mains = (sys.modules.get(name) for name in ("__main__", "lenet5_inference.main"))
        began = next((began for main in mains if (began := getattr(main, "STARTED", None)) is not None), None)
        self.spent: dict[str, float] = {}
        if began is not None:
            ours = self._last - began
            self.spent = {"start": max(_process_age() - ours, 0.0) * 1e3, "import": ours * 1e3}
        self._began = self._last - sum(self.spent.values()) / 1e3

    def lap(self, name: str) -> None:
        """Add the ms since the last lap to the time of ``name``."""
        at = now()
        self.spent[name] = self.spent.get(name, 0.0) + (at - self._last) * 1e3
        self._last = at

    @property
    def elapsed(self) -> float:
        """Return the ms since the stopwatch started."""
        return (now() - self._began) * 1e3


def _process_age() -> float:
    """Return the seconds since the process was created, in steps of 0.01 s; 0 if the system does not report them."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # Field 22 of proc(5)'s stat, in clock ticks since boot; field 2, the name, may contain spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Deadline:
    """A deadline ``seconds`` after its creation; ``seconds`` may be infinite."""

    def __init__(self, seconds: float) -> None:
        self._end = now() + seconds

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the deadline, at least 0."""
        return max(self._end - now(), 0.0)

    @property
    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return now() >= self._end

    def extend(self, seconds: float, most: float) -> None:
        """Postpone the deadline by ``seconds``, but to no later than ``most`` seconds from now."""
        self._end = min(self._end + seconds, now() + most)


def time_call(call: Callable[[], Result]) -> tuple[Result, float]:
    """Call a function once; return its result and its duration in ms."""
    start = now()
    result = call()
    return result, (now() - start) * 1e3


def time_by_host_clock(call: Callable[[], object], repeat: int, warmup: int = 0) -> tuple[float, ...]:
    """Return the duration in ms of each of ``repeat`` calls, which follow ``warmup`` untimed calls."""
    for _ in range(warmup):
        call()
    return tuple(time_call(call)[1] for _ in range(repeat))
