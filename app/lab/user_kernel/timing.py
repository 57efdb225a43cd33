"""Check and time a user's kernel for ``bench``, in a child process because the kernel may crash it."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.random import default_rng

from app.base.errors import UserError
from app.kernels.problems import Problem
from app.lab.bench.compiling import WrongResult
from app.lab.bench.results import FILE, Result
from app.lab.checking.cases import describe_problem, type_names
from app.lab.checking.user_cases import user_cases
from app.lab.user_kernel.child import CardProcess, LostError
from app.lab.user_kernel.row import UserVariant, open_user_kernel
from app.main_job.result import Timing

RUNS = 5  # time limit of the timed runs ÷ that of a check


class FileTimer:
    """Checks a user's kernel on small shapes, then checks and times it on the problems of ``bench``."""

    def __init__(self, process: CardProcess, row: UserVariant, like: str | None, arch: str) -> None:
        self.row, self._process, self._like, self._arch = row, process, like, arch
        self._loss: str | None = None

    def time(self, problem: Problem, images: int, noise: float, l2: str) -> Result:
        """Check and time the kernel; return times or a reason. noise: error of the median. Raises DeviceMemoryError."""
        result = Result(FILE, self.row.name, problem.dtype)
        if (reason := self.row.refusal_reason(problem, self._arch)) is not None:
            return replace(result, reason=reason)
        try:
            self.row.check_signatures(problem)
            if (fault := self._fault_on_small_shapes or self._loss) is not None:
                return replace(result, reason=fault, wrong=True)
            found = self._process.call(
                time_in_process, *(self.row.path, self._like, problem, images, self._arch, noise, l2), times=RUNS
            )
        except UserError as error:
            return replace(result, reason=str(error))
        except (WrongResult, LostError) as error:
            if isinstance(error, LostError):
                self._loss = f"{error} (on another layer)"
            return replace(result, reason=str(error), wrong=True)
        figures = Timing(tuple(found["samples"])).json_row
        clocks = " to ".join(dict.fromkeys(f"{mhz:,.0f}" for mhz in sorted(found["mhz"])))
        figures |= {"note": f"clock {clocks} MHz, {l2} L2"}
        told = {"error": found["error"], "instructions": self.row.instructions, "work": self.row.work(problem)}
        return replace(result, **figures, **told)

    @cached_property
    def _fault_on_small_shapes(self) -> str | None:
        """Return a description of the first fault on small fixed and random shapes, or None. Raises UserError."""
        from app.lab.checking.on_card import check_user_case  # imported only here, as it loads CuPy

        for case in user_cases(self.row, self._arch, default_rng()):
            given = self.row.path, self._like, case.problem, case.images, case.seed, self._arch
            try:
                fault = self._process.call(check_user_case, *given)
            except (WrongResult, LostError) as error:
                fault = str(error)
            if fault is not None:
                return f"wrong on {describe_problem(case.problem)}, {type_names(case.problem)}: {fault}"
        return None


def time_in_process(
    path: Path, like: str | None, problem: Problem, images: int, arch: str, noise: float, l2: str
) -> dict[str, Any]:
    """Check and time the kernel in this process; return its figures by name. Raises what a launch raises.

    samples: times in ms, until the median's error is ``noise``. error: worst ÷ allowed. mhz: clock rates around them.
    """
    from app.lab.user_kernel.judge import Judge

    with open_user_kernel(path, like) as row:
        judge = Judge(problem, images, arch)
        launch = judge.bind_variant(row)
        before = judge.clock.sm_clock_mhz()
        error, timing = judge.check_and_time(launch, noise, l2)
        return {"error": error, "samples": [*timing.samples], "mhz": [before, judge.clock.sm_clock_mhz()]}
