"""Provide a variant with two parameters and invented times, to sweep without a GPU."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from app.commands.sweep import SweepRequest
from app.kernels.problems import ConvProblem
from app.kernels.variant import KernelLaunch, LaunchConfig, Parameters, Unfit, Variant
from app.lab.sweep.grid import Measure, Target, make_sweep_target, measure_all
from app.main_job.result import Timing
from app.planning.tuning import Tuning
from tests.support.kernel_grid import toy_variant
from tests.support.requests import requested

ARCH = "sm_90a"
CARD = "NVIDIA Test"
Values = tuple[int, ...]
TILES: Values = (8, 12, 16, 64)
DEPTHS: Values = (4, 8)
PROBLEM = ConvProblem(1, 28, 28, 32, 5)


def configure(_: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tile, depth = parameters["TILE"], parameters["DEPTH"]
    if tile % depth:
        raise Unfit(f"TILE {tile} is no multiple of DEPTH {depth}")
    return LaunchConfig({}, (KernelLaunch(64, lambda images: (images, 1, 1), shared_bytes=1024 * tile * depth),))


TUNABLE: dict[str, Any] = {
    "configure": configure,
    "tunables": {"TILE": TILES, "DEPTH": DEPTHS},
    "defaults": lambda _: {"TILE": 24, "DEPTH": 8},
}
ROW, RIVAL = toy_variant(97, "swept", **TUNABLE), toy_variant(98, "rival", **TUNABLE)


def target(known: Tuning = Tuning(), *, tiles: Values = TILES, depths: Values = DEPTHS) -> Target:  # noqa: B008
    return make_sweep_target("conv1", PROBLEM, ROW, 100, ARCH, {"TILE": tiles, "DEPTH": depths}, known)


def measured(
    fail: Callable[[dict[str, int]], None] = lambda _: None, rival_ms: float = 9.0
) -> Callable[[Target], AbstractContextManager[Measure]]:
    """Return a stand-in for measuring: 1.0 ms at TILE 12, DEPTH 4, more at other points. ``fail`` may raise instead."""

    def measure(variant: Variant, parameters: dict[str, int]) -> tuple[Timing, float]:
        if variant is not ROW:
            return Timing((rival_ms,)), 0.5
        fail(parameters)
        ms = 1 + abs(parameters["TILE"] - 12) / 10 + (parameters["DEPTH"] - 4) / 100  # TILE matters more
        return Timing((*[ms] * 9, ms + 0.1)), 0.25

    return lambda _: nullcontext(measure)


def failing(error: Exception | type[BaseException], tile: int | None = None) -> Callable[[dict[str, int]], None]:
    """Return a function that raises the error at every point, or only at points with this TILE."""

    def fail(parameters: dict[str, int]) -> None:
        if tile in (None, parameters["TILE"]):
            raise error

    return fail


def request(arguments: str = "--conv swept") -> SweepRequest:
    found: SweepRequest = requested("sweep", f"--batch 100 {arguments}")
    return found


def swept(*, tiles: Values = TILES, depths: Values = DEPTHS) -> Target:
    found = target(tiles=tiles, depths=depths)
    measure_all([found], measured(), lambda _: None)
    return found
