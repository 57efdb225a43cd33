"""Compile kernels in parallel before they are measured, and tell errors of one kernel from fatal ones."""

import re
from collections.abc import Sequence
from contextlib import suppress

from app.cuda.compiler import compile_kernel, import_nvrtc
from app.cuda.compiler_process import compile_on_all_cores
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.planning.tuning import Tuning

# CUDA errors of a single launch that leave the card usable: invalid value, out of memory, out of resources.
HARMLESS = (1, 2, 701)
CUDA_ERRORS = ("CUDADriverError", "CUDARuntimeError")
OUT_OF_MEMORY = ("DeviceMemoryError", "OutOfMemoryError")  # from our allocations and from CuPy's pool


class WrongResult(Exception):  # noqa: N818 - a verdict, not an error
    """A kernel computed a wrong result; the text says where and by how much."""


def compile_variants(rows: Sequence[tuple[Problem, Variant]], arch: str, known: Tuning) -> None:
    """Compile each kernel for its problem into the cache, on all CPU cores, with a progress bar; skip failing ones.

    arch: such as ``sm_90a``. known: tuned settings. Raises UserError without NVRTC.
    """
    import_nvrtc()

    def compile_variant(pair: tuple[Problem, Variant]) -> None:
        problem, row = pair
        settings = known.parameters(problem, row, arch)
        if row.refusal_reason(problem, arch, settings) is None:
            with suppress(RuntimeError):
                compile_kernel(row.path, row.launch_config(problem, settings).defines, arch)

    compile_on_all_cores(compile_variant, rows, "compiling")


def recoverable_error_reason(error: Exception) -> str | None:
    """Return the text of a compile or launch error after which the GPU still works, in one line; else None."""
    if type(error) is RuntimeError:  # the compiler's own errors; CUDA errors have derived classes
        return first_compiler_error(str(error))
    if type(error).__name__ in CUDA_ERRORS and getattr(error, "status", 0) in HARMLESS:
        return str(error)
    return None


def first_compiler_error(text: str) -> str:
    """Return the first error in the compiler's log ``text``, in one line."""
    log = text.partition("\n")[2] or text
    asserted = re.search(r'static assertion failed with "([^"]*)"', log)
    found = asserted or re.search(r"\berror\s*:\s*(.*)", log)
    reason = " ".join((found.group(1) if found else log).split())
    return f"does not compile: {reason[:160]}"
