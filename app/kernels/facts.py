"""Derive facts of a problem: its convolution alone, its key in tuning tables, and its memory traffic."""

from dataclasses import fields, replace

from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem, PairProblem, Problem, operation


def without_epilogue(problem: ConvProblem) -> ConvProblem:
    """Return a problem's convolution and bias without activation and pooling, which the seed systems call an op."""
    return replace(problem, activation="", pool=1, pool_is_max=False)


def tuning_key(problem: Problem) -> str:
    """Return a short unique key for tuning tables: the operation and every field not at its default."""
    if isinstance(problem, PairProblem):
        form = " exact" if problem.exact else ""
        resize = getattr(problem, "resize", None)
        parts = [tuning_key(part) for part in (resize, problem.first, problem.second) if part is not None]
        return f"{operation(problem)}{form}: {'; '.join(parts)}"
    values = ((field, getattr(problem, field.name)) for field in fields(problem))
    changed = (f"{field.name}={value}" for field, value in values if value != field.default)
    return " ".join([operation(problem), *changed])


def bytes_moved(problem: Problem, images: int) -> int:
    """Return the minimum device-memory traffic in bytes: each argument read or written once for ``images`` images."""
    return sum(
        (argument.fixed + argument.per_image * images) * ITEMSIZE[argument.dtype]
        for argument in problem.arguments()
        if not argument.optional
    )
