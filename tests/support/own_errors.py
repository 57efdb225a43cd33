"""The tolerance of rows that do not add a sum's terms one by one: by the error bound that each of them declares."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from app.kernels.problems import ConvProblem, Problem
from app.kernels.variant import Variant
from app.lab.bench.tolerance import Expected
from app.layers import AvgPool, MaxPool

# That sum in float32 in another order than the plainest kernel, and so with other bits.
OWN_ORDER = {("conv", "cublas"), ("conv", "toom-cook"), ("gemm", "cublas"), ("gemm", "split-k")}


def bounded(
    row: Variant, problem: Problem, found: Expected, x: np.ndarray, parameters: Mapping[str, np.ndarray]
) -> Expected:
    """What a row must return, with its own error bound where it has one; x, parameters: as in a weights file."""
    if row.own_error is None or not isinstance(problem, ConvProblem):
        return found
    weights, bias = parameters["layer"].transpose(2, 0, 1, 3), parameters.get("layer_bias")
    roundings, magnitude = row.own_error(problem, x, weights, bias)
    if problem.pool > 1:
        pool = (MaxPool if problem.pool_is_max else AvgPool)("pool", problem.pool, ceil=problem.pool_ceil)
        magnitude = pool.reference(magnitude, {})
    return replace(found, magnitude=magnitude.ravel(), roundings=roundings)
