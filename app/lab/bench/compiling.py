"""Compile kernels before they are measured, by all processors: one after the other they would keep the card waiting."""

from collections.abc import Sequence
from contextlib import suppress

from app.cuda.compiler import compile_kernel, nvrtc
from app.cuda.on_all_cores import on_all_cores
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.planning.tuning import Tuning


def compile_rows(rows: Sequence[tuple[Problem, Variant]], arch: str, known: Tuning) -> None:
    """Compile each row for its problem, with a progress bar. What does not compile fails again, with its reason, later.

    arch: e.g. ``sm_90a``. Raises UserError without NVRTC.
    """
    nvrtc()

    def one(pair: tuple[Problem, Variant]) -> None:
        problem, row = pair
        settings = known.parameters(problem, row, arch)
        if row.refusal(problem, arch, settings) is None:
            with suppress(RuntimeError):
                compile_kernel(row.path, row.config(problem, settings).defines, arch)

    on_all_cores(one, rows, "compiling")
