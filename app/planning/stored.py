"""A layer's parameters as its kernel reads them."""

from collections.abc import Sequence

import numpy as np

from app.errors import UserError
from app.kernels.problems import Problem
from app.layers import Flatten
from app.network.graph import Graph, Step


def stored_parameters(
    graph: Graph, at: int, heads: Sequence[Step], problem: Problem, input_dtype: str
) -> tuple[np.ndarray | None, ...]:
    """The heads' parameters; the first layer that does not keep bytes takes the pixel scale into its own.

    Raises UserError for weights to be stored in float16 that it cannot hold.
    """
    first = graph.steps[at]
    flattened = first.in_shape if isinstance(first.layer, Flatten) else None
    arrays: list[np.ndarray | None] = []
    names: list[str] = []
    for index, head in enumerate(heads):
        scale = graph.pixel_scale(np.dtype(input_dtype)) if at == graph.scaled_at and index == 0 else 1.0
        arrays += head.layer.device_parameters(
            head.in_shape, graph.parameters, scale=scale, flattened=flattened if index == 0 else None
        )
        names += [head.layer.name, f"{head.layer.name}_bias"]
    dtypes = [argument.dtype for argument in problem.arguments()[1:]]
    return tuple(
        None if array is None else _stored(name, array, dtype)
        for name, array, dtype in zip(names, arrays, dtypes, strict=False)
    )


def _stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """The parameter as stored on the card. Raises UserError if float16 cannot hold its greatest number."""
    if dtype == "float16":
        largest, limits = np.abs(array).max(), np.finfo(np.float16)
        if largest > limits.max or 0 < largest < limits.smallest_normal:
            raise UserError(
                f"fp16 cannot hold the weights of {name}: the greatest, as the card would store it, is {largest:.2g}, "
                f"and float16 goes from {limits.smallest_normal:.1g} to {limits.max:,.0f}; take --precision fp32"
            )
    return np.ascontiguousarray(array, dtype=dtype)
