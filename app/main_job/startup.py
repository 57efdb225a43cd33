"""Measure a command's one-off costs by name, from the start of its process."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from app.base.clock import now

# One-off costs of any program that uses the GPU through CuPy, which imports NumPy.
BARE = ("numpy", "cupy", "context")


class Stopwatch:
    """Measures one-off costs in ms. spent: name → time booked so far, in the order of first booking.

    In main.py it begins with the program and books the time of the process before that, the interpreter's start-up,
    under ``start``. In other programs it begins when it is made.
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
        """Book the time since the last lap under ``name``, added to earlier bookings of that name."""
        at = now()
        self.spent[name] = self.spent.get(name, 0.0) + (at - self._last) * 1e3
        self._last = at

    @property
    def elapsed(self) -> float:
        """Milliseconds since the beginning, booked or not."""
        return (now() - self._began) * 1e3


def own_cost(spent: Mapping[str, float]) -> float:
    """Return the booked ms that a minimal CuPy program would not spend."""
    return sum(ms for name, ms in spent.items() if name not in BARE)


def _process_age() -> float:
    """Return the seconds since the process was created, in steps of 0.01 s; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # Field 22 of proc(5)'s stat, in clock ticks since boot; field 2, the name, may contain spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0
