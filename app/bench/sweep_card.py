"""Checks and times the points of a sweep on the card."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from app.bench import trial
from app.bench.sweep_points import L2, NOISE, Skip, Target, Wrong, spell
from app.errors import UserError
from app.kernels.compiler import compile_kernel
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.outcome import Timing

# CUDA errors that concern one launch and leave the card usable: invalid value, out of memory, out of resources.
HARMLESS = (1, 2, 701)
CUDA_ERRORS = ("CUDADriverError", "CUDARuntimeError")
OUT_OF_MEMORY = ("DeviceMemoryError", "OutOfMemoryError")  # our own allocations, CuPy's pool


class OnCard:
    """Measures the points of one target, while threads compile those that follow. A context manager.

    Raises UserError if the batch does not fit in device memory.
    """

    def __init__(self, target: Target, arch: str) -> None:
        self._row = target.row
        self._pool = ThreadPoolExecutor(max((os.cpu_count() or 1) // 2, 1))  # the others enqueue and check
        try:
            self._compiled = {
                spell(parameters): self._pool.submit(_compile, target.row, target.problem, parameters, arch)
                for parameters in target.grid
            }
            self._trial = trial.Trial(target.problem, target.images, arch)
        except BaseException as error:
            self._pool.shutdown(cancel_futures=True)
            if type(error).__name__ in OUT_OF_MEMORY:
                raise UserError(f"{target.images:,} images do not fit in device memory: say fewer, --batch N") from None
            raise

    def __call__(self, row: Variant, parameters: dict[str, int]) -> tuple[Timing, float]:
        """Times and error of one point. Raises Skip, Wrong."""
        try:
            if row is self._row:
                self._compiled.pop(spell(parameters)).result()
            launch = self._trial.launch(row, parameters)
            worst = self._trial.check(launch)
            return self._trial.time(launch, NOISE, L2), worst
        except trial.Wrong as verdict:
            raise Wrong(str(verdict)) from None
        except Exception as error:
            kind = type(error)
            if kind.__name__ in OUT_OF_MEMORY:
                raise Skip("needs more device memory than is free") from None
            if kind is RuntimeError:  # the compiler's; CUDA errors are of derived classes
                raise Skip(compiler_reason(str(error))) from None
            if kind.__name__ in CUDA_ERRORS and getattr(error, "status", 0) in HARMLESS:
                raise Skip(str(error)) from None
            raise

    def __enter__(self) -> OnCard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        del self._trial  # its memory is free before the next one's is taken


def _compile(row: Variant, problem: Problem, parameters: dict[str, int], arch: str) -> None:
    """Into the cache: the machine code of many points need not stay in memory."""
    compile_kernel(row.path, row.config(problem, parameters).defines, arch)


def compiler_reason(text: str) -> str:
    """The first thing that the compiler complains about, on one line."""
    log = text.partition("\n")[2] or text
    asserted = re.search(r'static assertion failed with "([^"]*)"', log)
    found = asserted or re.search(r"\berror\s*:\s*(.*)", log)
    reason = " ".join((found.group(1) if found else log).split())
    return f"does not compile: {reason[:160]}"
