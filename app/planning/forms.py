"""List the forms of a problem that kernels are tried for, the fastest first."""

from dataclasses import replace
from typing import TypeGuard

from app.base.precision import BY_DTYPE, INTEGERS
from app.kernels.fused.scaling import MOST_LAYERS_OF_HALVES, FeatureScaling
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, LinearProblem, PairProblem, Problem


def is_split(problem: Problem) -> TypeGuard[ConvProblem | LinearProblem]:
    """Return whether a single layer multiplies numbers that are the sum of two float16."""
    return isinstance(problem, ConvProblem | LinearProblem) and problem.dtype == "float16x2"


def layer_forms(problem: Problem, source: FeatureScaling | None) -> list[Problem]:
    """Return a layer's forms for kernels to try, the fastest first. source: scales and bounds of its input, or None."""
    if not is_split(problem):
        return [problem]
    if isinstance(problem, ConvProblem):
        bounded = source is not None and source.layers <= MOST_LAYERS_OF_HALVES
        halves = [replace(problem, bounded=True, exact=True), replace(problem, bounded=True)] if bounded else []
        return [*halves, problem]
    ranges = (False, True) if source is not None or problem.input_dtype == "uint8" else (True,)
    return [replace(problem, exact=exact, unbounded=beyond) for beyond in ranges for exact in (True, False)]


def pair_forms(problem: PairProblem, pixel_scale: float | None, *, integers: bool, sparse: bool) -> list[PairProblem]:
    """Return the problem's forms for kernels to try: for weights that float16 holds exactly, then for any weights.

    The first form is the fastest. pixel_scale: the factor of the first layer's pixels, None if that layer reads none.
    The exact form keeps it out of the weights, which would become inexact. integers: whether there are 8-bit filters.
    sparse: whether the second filters are 2:4 sparse and kernels for them may run; forms for these come first.
    """
    if sparse and isinstance(problem, ConvPairProblem):
        dense = pair_forms(problem, pixel_scale, integers=integers, sparse=False)
        return [*(replace(form, sparse=True) for form in dense if isinstance(form, ConvPairProblem)), *dense]
    if problem.dtype == INTEGERS:
        if isinstance(problem, ConvPairProblem):
            return [problem] if integers else []
        wider = BY_DTYPE[INTEGERS].fallback
        return [LinearPairProblem(replace(problem.first, dtype=wider), replace(problem.second, dtype=wider))]
    if problem.dtype != "float16x2":
        return [problem]
    if isinstance(problem, ConvPairProblem) and pixel_scale is not None:
        return [replace(problem, exact=True, pixel_scale=pixel_scale), problem]
    return [replace(problem, exact=True), problem]
