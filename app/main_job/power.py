"""Measure power, energy per image and the card's clock while a batch is repeated (``--power``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from app.base.clock import now
from app.base.errors import UserError
from app.cuda import nvml
from app.cuda.nvml import NvmlDevice
from app.main_job.statistics import median
from app.terminal.text import format_factor

SECONDS = 5.0  # of measurement; the energy counter is updated every 20 to 100 ms, at most 2 % of them
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 0.5  # wait no longer for the energy counter to move
Source = Literal["energy counter", "power samples"]
COUNTED: Final = "energy counter"
INTEGRATED: Final = "power samples"

if TYPE_CHECKING:
    from app.records import report as records


def power_record(seconds: float, images: int, joules: float, source: Source, clocks: Sequence[int]) -> records.Power:
    """Return a measurement as the report's record. images, joules: in all. clocks: samples of the SM clock in MHz."""
    shown: records.Clock | None = None
    if clocks:
        shown = {"min": min(clocks), "median": int(median(clocks)), "max": max(clocks)}
    return {
        "seconds": seconds,
        "images": images,
        "joules": joules,
        "watts": joules / seconds,
        "microjoules_per_image": joules / images * 1e6,
        "source": source,
        "sm_clock_mhz": shown,
    }


def check_nvml_available() -> None:
    """Raise UserError if NVML, NVIDIA's library for monitoring GPUs, cannot be used."""
    with _open_nvml_card():
        pass


def measure_current_gpu(run: Callable[[], object], images: int) -> records.Power | None:
    """Measure the current GPU's power over repeated runs of ``images`` images each. Raises UserError without NVML."""
    from tqdm import tqdm  # imported only here: other runs do not need it

    with _open_nvml_card() as card, tqdm(total=SECONDS, desc="power", unit=" s", disable=None) as bar:
        return measure_power(card, run, images, bar.update)


@contextmanager
def _open_nvml_card() -> Iterator[NvmlDevice]:
    try:
        with nvml.open_nvml(nvml.current_bus_id) as card:
            yield card
    except nvml.UnavailableError as reason:
        raise UserError(f"--power: {reason}; or leave --power out") from None


def measure_power(
    card: NvmlDevice,
    run: Callable[[], object],
    images: int,
    progress: Callable[[float], object] = lambda _: None,
    clock: Callable[[], float] = now,
) -> records.Power | None:
    """Repeat ``run``, which classifies ``images`` images, for about ``SECONDS`` seconds; return the measurement.

    The measurement begins and ends when the energy counter changes. progress: called with the seconds since its last
    call. Return None for a card that reports neither energy nor power.
    """
    for _ in range(2):
        run()  # raises the clocks
    begin, _ = _run_until_energy_update(card, run, clock)
    if begin is None and card.power_mw() is None:
        return None
    start = polled = clock()
    runs, clocks, powers = 0, list[int](), list[int]()
    while polled - start < SECONDS:
        run()
        runs += 1
        if (looked := clock()) - polled >= POLL_SECONDS:
            clocks += [mhz for mhz in (card.sm_clock_mhz(),) if mhz is not None]
            powers += [mw for mw in (card.power_mw(),) if mw is not None]
            progress(looked - polled)
            polled = looked
    end, more = (None, 0) if begin is None else _run_until_energy_update(card, run, clock)
    seconds, count = clock() - start, (runs + more) * images
    if begin is not None and end is not None:
        return power_record(seconds, count, (end - begin) / 1e3, COUNTED, clocks)
    if not powers:
        return None
    return power_record(seconds, count, sum(powers) / len(powers) / 1e3 * seconds, INTEGRATED, clocks)


def _run_until_energy_update(
    card: NvmlDevice, run: Callable[[], object], clock: Callable[[], float]
) -> tuple[int | None, int]:
    """Call ``run`` until the energy counter changes; return its value in mJ (None: no change), number of calls."""
    before, start, runs = card.energy_mj(), clock(), 0
    while before is not None and clock() - start < PATIENCE_SECONDS:
        run()
        runs += 1
        if (after := card.energy_mj()) != before:
            return after, runs
    return None, runs


def power_text(power: records.Power) -> str:
    """Return a measurement as text. (Microjoules per image are the same as joules per million images.)"""
    clocks = power["sm_clock_mhz"]
    clock = f"; SM clock {clocks['median']:,} MHz ({clocks['min']:,} to {clocks['max']:,})" if clocks else ""
    joules = f"{format_factor(power['microjoules_per_image'])} J per million images"
    over = f"over {power['seconds']:.1f} s of repeated runs ({power['source']})"
    return f"{power['watts']:.0f} W, {joules}, {over}{clock}"
