"""The one tolerance table, of ``bench``, ``sweep`` and the tests. Pure; for NumPy and CuPy arrays alike.

| arithmetic | error allowed |
| --- | --- |
| float64, float32 | element by element: (terms + 16) roundings of the sum of its terms' magnitudes |
| float16, tfloat32 | maximum and RMS over the tensor: twice those of a plain implementation, and float32's on top |
| pairs of layers in float16 | likewise, but four roundings of the second layer's terms on top |
| pairs of layers in float16x2 | the maximum alone: twice that of a plain float32 implementation, and the same on top |
| maximum pooling, resizing, ReLU alone, argmax | none |

To that come 8 roundings of the result for activations but ReLU, and one where the output is stored more narrowly than
it was computed. Errors are against float64 of operands that were never rounded to the arithmetic type; in float64 and
float32 all operands are representable. NaN never passes.

The worst case of rounding errors that go through two layers is thousands of times what happens: a tolerance by that
rule would let float16 pass for float32. So pairs are held against what a plain implementation errs in fact; what is on
top of that is for results so few that their greatest error is a matter of luck.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.kernels.problems import (
    ActivationProblem,
    ArgmaxProblem,
    ConvProblem,
    LinearProblem,
    PairProblem,
    PoolProblem,
    Problem,
    ResizeProblem,
    SoftmaxProblem,
)
from app.precision import BY_DTYPE, wide

# The greatest relative error of one rounding, and what subnormal results may lose beside it.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
SUBNORMAL = {"float64": 1e-300, "float32": 1e-37, "float16": 2.0**-25}
SLACK = 16  # roundings for bias, pooling, division and exponential
OWN = 8  # roundings of an activation itself, as of tanh; ReLU has none
OF_PAIRS = 4  # roundings of the second layer's terms


@dataclass(frozen=True)
class Expected:
    """What a kernel must return for some images, in float64, the three arrays of one shape.

    exact: without any rounding. magnitude: what rounding errors of each element scale with; a pair's is its second
    layer's, whose input is exact. plain: what a plain implementation at the same precision (of float16x2: in float32)
    returns before its output is stored; None where operands are not rounded.
    """

    exact: Any
    magnitude: Any
    plain: Any | None = None


def terms(problem: Problem) -> int:
    """Terms in the sum behind one element."""
    match problem:
        case ConvProblem():
            return problem.depth
        case LinearProblem():
            return problem.inputs
        case PoolProblem():
            return problem.window**2
        case SoftmaxProblem():
            return problem.classes
    return 0


def function_of(problem: Problem) -> str:
    """Return the activation that the problem ends with or is; empty if none."""
    return problem.function if isinstance(problem, ActivationProblem) else getattr(problem, "activation", "")


def is_exact(problem: Problem) -> bool:
    """Return whether nothing is rounded, because values are only selected, or as exactly defined."""
    if isinstance(problem, PoolProblem):
        return problem.is_max
    if isinstance(problem, ActivationProblem):
        return problem.function == "relu"  # others round, even if only once
    return isinstance(problem, ArgmaxProblem | ResizeProblem)


def is_coarse(problem: Problem) -> bool:
    """Whether operands are rounded to 11 significant bits. Elsewhere float16 is a way to store numbers, no more."""
    return isinstance(problem, ConvProblem | LinearProblem | PairProblem) and BY_DTYPE[problem.dtype].coarse


def allowed(problem: Problem, expected: Expected) -> tuple[Any, float]:
    """The tolerance of each element, and that of the errors' RMS over the tensor (infinite where there is none)."""
    if is_exact(problem):
        return np.zeros_like(expected.exact), np.inf
    computed = wide(problem.dtype)
    last = problem.second if isinstance(problem, PairProblem) else problem
    stored = getattr(last, "output_dtype", problem.dtype)
    size = np.abs(expected.exact)
    roundings = OF_PAIRS if isinstance(problem, PairProblem) else terms(problem) + SLACK
    each = roundings * ROUNDING[computed] * expected.magnitude + SUBNORMAL[computed]
    if function_of(problem) not in ("", "relu"):
        each = each + OWN * ROUNDING[computed] * size
    if ROUNDING[stored] > ROUNDING[computed]:
        each = each + ROUNDING[stored] * (size + each) + SUBNORMAL[stored]
    if expected.plain is None:
        return each, np.inf
    plain = expected.plain - expected.exact
    most_rms = 2 * rms(plain) + rms(each) if is_coarse(problem) else np.inf
    return each + 2 * float(np.abs(plain).max()), most_rms


def rms(values: Any) -> float:
    """Root of the mean square."""
    return float((values * values).mean()) ** 0.5
