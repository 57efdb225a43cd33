"""Choose the points of a sweep (parameters to try on each layer), measure them and keep the results."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter

from tqdm import tqdm

from app.base.errors import UserError, choices_hint
from app.base.interrupts import deferred_interrupts
from app.kernels.problems import Problem
from app.kernels.variant import Parameters, Variant
from app.lab.bench.compiling import WrongResult
from app.main_job.result import Timing
from app.main_job.statistics import round_samples
from app.planning.tuning import TunedResult, Tuning
from app.records import sweep as records
from app.records.sweep import Point, SkippedPoint

NOISE = 0.01  # a point is measured until its median's relative error is below this
L2 = "cold"


class CannotRun(Exception):  # noqa: N818 - a verdict, not an error
    """The kernel cannot run with the parameters of a point; the text is the reason."""


@dataclass
class Target:
    """A layer whose kernel is swept, and the results. A point is one value for each parameter.

    grid: points to try, including the defaults and the best known parameters. points: measured points with ms,
    spread_ms and error_share (worst error ÷ tolerance). skipped: for each reason, the first skipped point and the
    number of such points. finished: number of points tried. rival: kernel that ``auto`` now chooses, if it is another
    one; it is measured in the same run.
    """

    layer: str
    problem: Problem
    row: Variant
    images: int
    grid: list[dict[str, int]]
    default: dict[str, int]
    points: list[Point] = field(default_factory=list)
    skipped: list[SkippedPoint] = field(default_factory=list)
    wrong: list[records.WrongPoint] = field(default_factory=list)
    finished: int = 0
    rival: tuple[Variant, dict[str, int]] | None = None
    rival_result: TunedResult | None = None

    @property
    def best_point(self) -> Point | None:
        """Return the fastest point; None if none was measured."""
        return min(self.points, key=itemgetter("ms"), default=None)

    @property
    def default_point(self) -> Point | None:
        """Return the point with the kernel's default parameters; None if it was not measured."""
        return next((point for point in self.points if point["parameters"] == self.default), None)

    def tuned_results(self) -> dict[Problem, dict[str, TunedResult]]:
        """Return the results for the tuning file: of the best point, and of the rival if it was measured."""
        if self.best_point is None:
            return {}
        found = {self.row.name: TunedResult(self.best_point["parameters"], self.best_point["ms"], self.images)}
        if self.rival and self.rival_result:
            found[self.rival[0].name] = self.rival_result
        return {self.problem: found}

    def record_skipped(self, parameters: dict[str, int], reason: str) -> None:
        """Record a point that cannot run. Reasons that differ only in numbers count as one."""
        alike = next(
            (known for known in self.skipped if _strip_numbers(known["reason"]) == _strip_numbers(reason)), None
        )
        if alike:
            alike["count"] += 1
        else:
            self.skipped.append({"parameters": parameters, "reason": reason, "count": 1})


def _strip_numbers(reason: str) -> str:
    return re.sub(r"\d[\d,]*", "#", reason)


def parse_settings(texts: Sequence[str], row: Variant) -> dict[str, tuple[int, ...]]:
    """Return the values to try for each parameter: those of ``--set NAME=V,V`` (``texts``), else the row's.

    Raises UserError if the kernel has no parameters, and for a parameter that is unknown, set twice, or not a list of
    positive integers.
    """
    if not row.tunables:
        raise UserError(
            f"{row.operation} kernel '{row.name}' has no parameters to sweep: choose another (see 'kernels')"
        )
    values = dict(row.tunables)
    named = [text.partition("=")[0] for text in texts]
    for text in texts:
        name, _, given = text.partition("=")
        if name not in values:
            raise UserError(f"--set {text}: {row.name} has no parameter '{name}': {choices_hint(name, values)}")
        if named.count(name) > 1:
            raise UserError(f"--set {text}: {name} is set twice, give all its values at once")
        numbers = given.split(",")
        if not all(re.fullmatch(r"0*[1-9][0-9]{0,8}", number.strip()) for number in numbers):
            raise UserError(f"--set {text}: give {name}=V,V,… with positive whole numbers")
        values[name] = tuple(dict.fromkeys(map(int, numbers)))
    return values


def make_sweep_target(
    layer: str,
    problem: Problem,
    row: Variant,
    images: int,
    arch: str,
    values: Mapping[str, Iterable[int]],
    tuning: Tuning,
) -> Target:
    """Return a layer's target, with the combinations of ``values`` that the kernel supports. Raises UserError."""
    target = Target(layer, problem, row, images, [], row.defaults(problem))
    for numbers in product(*values.values()):
        parameters = dict(zip(values, numbers, strict=True))
        reason = row.refusal_reason(problem, arch, parameters)
        if reason is None:
            target.grid.append(parameters)
        else:
            target.record_skipped(parameters, reason)
    if not target.grid:
        reasons = "; ".join(
            f"{format_parameters(skipped['parameters'])}: {skipped['reason']}" for skipped in target.skipped[:3]
        )
        raise UserError(f"no point of {row.name} can compute layer {layer} ({reasons}): try other values")
    known = tuning.parameters(problem, row, arch)
    always = [{name: point[name] for name in values} for point in (target.default, {**target.default, **known})]
    valid = [parameters for parameters in always if row.refusal_reason(problem, arch, parameters) is None]
    target.grid = list({format_parameters(parameters): parameters for parameters in (*valid, *target.grid)}.values())
    chosen = tuning.choose_kernel(problem, arch)
    if chosen is not None and row.automatic and chosen[0].name != row.name:
        target.rival = chosen
    return target


def format_parameters(parameters: Parameters) -> str:
    """Return parameters as text: ``BM=32 BN=64``."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


# From a kernel and its parameters to the times and the worst error ÷ tolerance. Raises CannotRun or WrongResult.
Measure = Callable[[Variant, dict[str, int]], tuple[Timing, float]]


def measure_all(
    targets: Sequence[Target],
    measuring: Callable[[Target], AbstractContextManager[Measure]],
    done: Callable[[Target], None],
) -> None:
    """Measure all points of all targets. Ctrl-C stops between two points.

    measuring: function that opens a context with the function that measures a target's points. done: called after each
    target, also after one that was interrupted.
    """
    total = sum(len(target.grid) for target in targets)
    with (
        suppress(KeyboardInterrupt),
        deferred_interrupts() as check,
        tqdm(total=total, unit=" points", disable=None) as bar,
    ):
        for target in targets:
            bar.set_description(target.layer)
            try:
                with measuring(target) as measure:
                    _measure_automatic_choice(target, measure)
                    for parameters in target.grid:
                        check()
                        _measure_point(target, parameters, measure)
                        target.finished += 1
                        bar.update()
            finally:
                done(target)


def _measure_point(target: Target, parameters: dict[str, int], measure: Measure) -> None:
    try:
        timing, error = measure(target.row, parameters)
    except CannotRun as skip:
        target.record_skipped(parameters, str(skip))
    except WrongResult as verdict:
        target.wrong.append({"parameters": parameters, "reason": str(verdict)})
    else:
        tflops = target.problem.flops * target.images / timing.median / 1e9
        target.points.append(
            {
                "parameters": parameters,
                "ms": timing.median,
                "spread_ms": timing.spread,
                "samples": round_samples(timing.samples),
                "tflops": tflops,
                "error_share": error,
            }
        )


def _measure_automatic_choice(target: Target, measure: Measure) -> None:
    if target.rival is not None:
        with suppress(CannotRun, WrongResult):
            timing, _ = measure(*target.rival)
            target.rival_result = TunedResult(target.rival[1], timing.median, target.images)
