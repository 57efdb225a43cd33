"""Holds results against the tolerance table, element by element."""

from typing import Any

import numpy as np

from app.bench.ladder.tolerance import Expected, allowed, rms
from app.kernels.problems import Problem


def check(y: Any, problem: Problem, expected: Expected) -> float:
    """Hold a flat result against what is expected, flat; returns the greatest error ÷ what is allowed for it.

    y may be shorter: of fewer images. The RMS is then not compared, for it is a property of the whole tensor.
    Raises AssertionError that names the worst element.
    """
    each, most_rms = allowed(problem, expected)
    y, exact, each = y.astype(np.float64), expected.exact[: y.size], each[: y.size]
    error = np.abs(y - exact)
    excess = error - each
    excess[excess != excess] = np.inf
    worst = int(excess.argmax())
    # Written so that NaN, an element never written, fails.
    assert bool((error <= each).all()), (
        f"element {worst} of {y.size} is {float(y[worst]):.9g}, must be {float(exact[worst]):.9g} "
        f"within {float(each[worst]):.3g} ({int((~(error <= each)).sum())} elements are wrong): {problem}"
    )
    if y.size == expected.exact.size:
        assert rms(error) <= most_rms, f"RMS of the errors is {rms(error):.3g}, at most {most_rms:.3g}: {problem}"
    return float((error / np.maximum(each, 1e-300)).max())
