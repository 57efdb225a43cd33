"""Power, energy per image and clock of the card while a batch is repeated for about a second."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from app.cuda.nvml import Card
from app.runtime.statistics import median
from app.text import format_factor

SECONDS = 1.0
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 0.5  # wait no longer for the energy counter to move: it does every 20 to 100 ms
COUNTED, INTEGRATED = "energy counter", "power samples"


@dataclass(frozen=True)
class Power:
    """A measurement. joules: of the whole card. source: ``COUNTED``, or ``INTEGRATED`` from the mean of readings."""

    seconds: float
    images: int
    joules: float
    source: str
    clocks_mhz: tuple[int, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The fields of the report."""
        clocks = self.clocks_mhz
        shown = {"min": min(clocks), "median": median(clocks), "max": max(clocks)} if clocks else None
        return {
            "seconds": self.seconds,
            "images": self.images,
            "joules": self.joules,
            "watts": self.joules / self.seconds,
            "microjoules_per_image": self.joules / self.images * 1e6,
            "source": self.source,
            "sm_clock_mhz": shown,
        }


def measure(
    card: Card,
    run: Callable[[], object],
    images: int,
    progress: Callable[[float], object] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> Power | None:
    """Repeat ``run``, which classifies ``images`` images, for ``SECONDS`` or a little longer.

    The energy counter moves in steps: the measurement begins at a step and ends at one. progress: called with the
    seconds since its last call. Returns None for a card that gives neither energy nor power.
    """
    for _ in range(2):
        run()  # the clocks rise
    begin, _ = _step(card, run, clock)
    if begin is None and card.power_mw() is None:
        return None
    start = polled = clock()
    runs, clocks, powers = 0, list[int](), list[int]()
    while polled - start < SECONDS:
        run()
        runs += 1
        if (now := clock()) - polled >= POLL_SECONDS:
            clocks += [told for told in (card.sm_clock_mhz(),) if told is not None]
            powers += [told for told in (card.power_mw(),) if told is not None]
            progress(now - polled)
            polled = now
    end, more = (None, 0) if begin is None else _step(card, run, clock)
    seconds, count = clock() - start, (runs + more) * images
    if begin is not None and end is not None:
        return Power(seconds, count, (end - begin) / 1e3, COUNTED, tuple(clocks))
    if not powers:
        return None
    return Power(seconds, count, sum(powers) / len(powers) / 1e3 * seconds, INTEGRATED, tuple(clocks))


def _step(card: Card, run: Callable[[], object], clock: Callable[[], float]) -> tuple[int | None, int]:
    """Run until the energy counter moves; return its value in millijoules, None if it does not, and the runs."""
    before, start, runs = card.energy_mj(), clock(), 0
    while before is not None and clock() - start < PATIENCE_SECONDS:
        run()
        runs += 1
        if (now := card.energy_mj()) != before:
            return now, runs
    return None, runs


def power_text(power: Mapping[str, Any]) -> str:
    """Format ``Power.document``; microjoules per image are joules per million images."""
    clocks = power["sm_clock_mhz"]
    clock = f"; SM clock {clocks['median']:,} MHz ({clocks['min']:,} to {clocks['max']:,})" if clocks else ""
    joules = f"{format_factor(power['microjoules_per_image'])} J per million images"
    over = f"over {power['seconds']:.1f} s of repeated runs ({power['source']})"
    return f"{power['watts']:.0f} W, {joules}, {over}{clock}"
