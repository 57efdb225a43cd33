"""Check and time the points of a sweep on the card."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from app.base.errors import UserError
from app.cuda.compiler import compile_kernel
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.lab.bench.compiling import OUT_OF_MEMORY, recoverable_error_reason
from app.lab.bench.trial import Trial
from app.lab.sweep.grid import L2, NOISE, CannotRun, Target, format_parameters
from app.main_job.result import Timing


class PointTimer:
    """Checks and times the points of one target while threads compile the next points. A context manager.

    Raises UserError if the batch does not fit in device memory.
    """

    def __init__(self, target: Target, arch: str) -> None:
        self._row = target.row
        self._pool = ThreadPoolExecutor(max((os.cpu_count() or 1) // 2, 1))  # the other cores enqueue and check
        try:
            self._compiled = {
                format_parameters(parameters): self._pool.submit(
                    _compile_into_cache, target.row, target.problem, parameters, arch
                )
                for parameters in target.grid
            }
            self._trial = Trial(target.problem, target.images, arch)
        except BaseException as error:
            self._pool.shutdown(cancel_futures=True)
            if type(error).__name__ in OUT_OF_MEMORY:
                raise UserError(
                    f"{target.images:,} images do not fit in device memory: use fewer, with --batch N"
                ) from None
            raise

    def __call__(self, row: Variant, parameters: dict[str, int]) -> tuple[Timing, float]:
        """Return times and worst error ÷ tolerance with these parameters. Raises CannotRun and WrongResult."""
        try:
            if row is self._row:
                self._compiled.pop(format_parameters(parameters)).result()
            launch = self._trial.bind_variant(row, parameters)
            worst = self._trial.check_outputs(launch)
            return self._trial.time_launch(launch, NOISE, L2), worst
        except Exception as error:
            out_of_memory = type(error).__name__ in OUT_OF_MEMORY
            reason = "needs more device memory than is free" if out_of_memory else recoverable_error_reason(error)
            if reason is None:
                raise
            raise CannotRun(reason) from None

    def __enter__(self) -> PointTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        del self._trial  # free its memory before the next trial allocates


def _compile_into_cache(row: Variant, problem: Problem, parameters: dict[str, int], arch: str) -> None:
    """Compile the kernel into the cache on disk, without keeping its machine code in memory."""
    compile_kernel(row.path, row.launch_config(problem, parameters).defines, arch)
