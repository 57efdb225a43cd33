"""Facts of a problem: what it is alone, its key in tuning tables, and the least bytes that it moves."""

from dataclasses import fields, replace

from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem, PairProblem, Problem, operation


def alone(problem: ConvProblem) -> ConvProblem:
    """Return the convolution and its bias without activation and pooling: an op, in the terms of the seed systems."""
    return replace(problem, activation="", pool=1, pool_is_max=False)


def key(problem: Problem) -> str:
    """Return a short unique text: the operation and every field other than its default, e.g. for tuning tables."""
    if isinstance(problem, PairProblem):
        form = " exact" if problem.exact else ""
        resize = getattr(problem, "resize", None)
        parts = [key(part) for part in (resize, problem.first, problem.second) if part is not None]
        return f"{operation(problem)}{form}: {'; '.join(parts)}"
    values = ((field, getattr(problem, field.name)) for field in fields(problem))
    changed = (f"{field.name}={value}" for field, value in values if value != field.default)
    return " ".join([operation(problem), *changed])


def bytes_moved(problem: Problem, images: int) -> int:
    """Return the least bytes through device memory for ``images`` images: each argument read or written once."""
    return sum(
        (argument.fixed + argument.per_image * images) * ITEMSIZE[argument.dtype]
        for argument in problem.arguments()
        if not argument.optional
    )
