"""Recognise failures of one kernel that leave the card usable, so that the other kernels are still measured."""

import re

# CUDA errors that concern one launch and leave the card usable: invalid value, out of memory, out of resources.
HARMLESS = (1, 2, 701)
CUDA_ERRORS = ("CUDADriverError", "CUDARuntimeError")


class Wrong(Exception):  # noqa: N818 - a verdict, not an error
    """A kernel's result is wrong; the text says where and by how much."""


def reason_of(error: Exception) -> str | None:
    """Describe the error in one line if it concerns one kernel alone (compilation or launch); else return None."""
    if type(error) is RuntimeError:  # the compiler's own errors; CUDA errors have derived classes
        return compiler_reason(str(error))
    if type(error).__name__ in CUDA_ERRORS and getattr(error, "status", 0) in HARMLESS:
        return str(error)
    return None


def compiler_reason(text: str) -> str:
    """Return the compiler's first error on one line."""
    log = text.partition("\n")[2] or text
    asserted = re.search(r'static assertion failed with "([^"]*)"', log)
    found = asserted or re.search(r"\berror\s*:\s*(.*)", log)
    reason = " ".join((found.group(1) if found else log).split())
    return f"does not compile: {reason[:160]}"
