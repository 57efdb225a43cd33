"""Define the tolerance of ``bench``, ``sweep`` and the tests in one table, for NumPy and CuPy arrays alike.

| arithmetic | error allowed |
| --- | --- |
| float64, float32 | element by element: (terms + 16) roundings of the sum of its terms' magnitudes |
| float32 by fast algorithms | the same with the roundings and magnitudes that the kernel's row defines |
| float16, tfloat32 | maximum and RMS over the tensor: twice those of a plain implementation, plus float32's tolerance |
| pairs of layers in float16 | as float16, but plus four roundings of the second layer's terms instead of float32's |
| int8 | as float16 in pairs; the plain implementation has bytes, too |
| float16x2, layers alone and in pairs | maximum only: twice that of a plain float32 implementation, plus the same
four roundings |
| maximum pooling, resizing, ReLU alone, argmax | none |

An activation other than ReLU may add 8 roundings of the result. An output that is stored in a narrower type than it was
computed in may add one. Errors are relative to float64 results of operands that were never rounded to the arithmetic
type; float64 and float32 represent all operands exactly. NaN never passes.

The worst case of rounding errors through two layers is thousands of times the typical error: a tolerance from the worst
case would accept float16 as float32. So pairs are compared with the actual error of a plain implementation. The added
roundings are for tensors so small that their greatest error depends on chance.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, INTEGERS, epilogue_dtype
from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, PairProblem, PoolProblem, Problem

# The largest relative error of one rounding, and the additional absolute error of subnormal results.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
SUBNORMAL = {"float64": 1e-300, "float32": 1e-37, "float16": 2.0**-25}
SLACK = 16  # roundings for bias, pooling, division and exponential
ACTIVATION = 8  # roundings of an activation such as tanh; ReLU has none
WeightLayer = ConvProblem | LinearProblem  # a layer with parameters
PAIR_ROUNDINGS = 4  # roundings of the second layer's terms, and of a layer's alone in float16x2


class Expected(Frozen):
    """The correct results of a kernel for some images: two or three float64 arrays of one shape.

    exact: without any rounding. magnitude: scale of each element's rounding errors; for a pair, of the second
    layer's errors, given exact input. plain: result of a plain implementation at the same precision (for float16x2: in
    float32) before it is stored; None if operands are neither rounded nor split. roundings: number of roundings of a
    sum; None for one per term, as in kernels that add term by term.
    """

    exact: Any
    magnitude: Any
    plain: Any | None = None
    roundings: int | None = None


def term_count(problem: Problem) -> int:
    """Return the number of terms in the sum of one output element; 0 for pairs of layers and problems without sums."""
    match problem:
        case ConvProblem():
            return problem.reduction_length
        case LinearProblem():
            return problem.inputs
        case PoolProblem():
            return problem.window**2
        case SoftmaxProblem():
            return problem.classes
    return 0


def activation_name(problem: Problem) -> str:
    """Return the name of the activation that is the problem or that ends it; empty if there is none."""
    return problem.function if isinstance(problem, ActivationProblem) else getattr(problem, "activation", "")


def requires_exact_results(problem: Problem) -> bool:
    """Return whether results must be exact: the problem only selects values, or its definition includes rounding."""
    if isinstance(problem, PoolProblem):
        return problem.is_max
    if isinstance(problem, ActivationProblem):
        return problem.function == "relu"  # other activations round at least once
    return isinstance(problem, ArgmaxProblem | ResizeProblem)


def has_rounded_operands(problem: Problem) -> bool:
    """Return whether the arithmetic rounds operands to 11 significant bits, beyond storing them as float16."""
    return isinstance(problem, ConvProblem | LinearProblem | PairProblem) and BY_DTYPE[problem.dtype].coarse


def has_split_operands(problem: Problem) -> bool:
    """Return whether operands are split into sums of two float16 numbers, about as exact as float32."""
    return problem.dtype == "float16x2"


def round_pair_operands(
    problem: PairProblem, half: WeightLayer, x: Any, w: Any, narrow: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return x and w (maps last) of ``half``, a layer of the pair, as a plain implementation multiplies them.

    ``narrow`` rounds them, except in the second convolution of int8: its inputs are bytes, with 255 for 1 and more, and
    its weights are whole numbers from -127 to 127 with one scale for each map.
    """
    if problem.dtype != INTEGERS or not isinstance(problem, ConvPairProblem) or half is problem.first:
        return narrow(x), narrow(w)
    filters = w.astype(np.float64).reshape(-1, problem.second.maps)
    steps = abs(filters).max(axis=0) / 127
    whole = (x * 255).clip(0, 255).round()
    return whole / 255, ((filters / (steps + (steps == 0))).round() * steps).reshape(w.shape)


def allowed_errors(problem: Problem, expected: Expected) -> tuple[Any, float]:
    """Return the error allowed for each element, and that for the RMS of all errors (infinite without a limit)."""
    if requires_exact_results(problem):
        return np.zeros_like(expected.exact), np.inf
    computed = epilogue_dtype(problem.dtype)
    last = problem.second if isinstance(problem, PairProblem) else problem
    stored = getattr(last, "output_dtype", problem.dtype)
    size = np.abs(expected.exact)
    few = isinstance(problem, PairProblem) or has_split_operands(problem)
    in_sum = term_count(problem) if expected.roundings is None else expected.roundings
    roundings = PAIR_ROUNDINGS if few else in_sum + SLACK
    each = roundings * ROUNDING[computed] * expected.magnitude + SUBNORMAL[computed]
    if activation_name(problem) not in ("", "relu"):
        each = each + ACTIVATION * ROUNDING[computed] * size
    if ROUNDING[stored] > ROUNDING[computed]:
        each = each + ROUNDING[stored] * (size + each) + SUBNORMAL[stored]
    if expected.plain is None:
        return each, np.inf
    plain = expected.plain - expected.exact
    most_rms = 2 * rms(plain) + rms(each) if has_rounded_operands(problem) else np.inf
    return each + 2 * float(np.abs(plain).max()), most_rms


def rms(values: Any) -> float:
    """Return the root mean square of an array's elements."""
    return float((values * values).mean()) ** 0.5
