"""Softmax: from scores to probabilities."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.kernels.plain_problems import SoftmaxProblem
from app.layers.base import Layer, Parameters, Shape


@dataclass(frozen=True)
class Softmax(Layer):
    """y[k] = exp(x[k] - max x) / Σ_j exp(x[j] - max x): without the maximum, exp would overflow.

    A row with NaN or +infinity, or of -infinity only, becomes NaN throughout.
    """

    kind: ClassVar[str] = "softmax"
    operation: ClassVar[str] = "softmax"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (classes) → (classes)."""
        if len(shape) != 1:
            raise self.fail(shape, "(classes,): put a Flatten before it")
        return shape

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute y in place."""
        with np.errstate(invalid="ignore"):  # infinity - infinity
            x -= x.max(axis=1, keepdims=True)
        np.exp(x, out=x)
        x /= x.sum(axis=1, keepdims=True)
        return x

    def own_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> SoftmaxProblem | None:
        """Return the problem of a kernel of its own; input and output have one type."""
        return SoftmaxProblem(shape[0], input_dtype) if input_dtype == output_dtype else None
