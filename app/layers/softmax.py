"""Define Softmax, which turns scores into probabilities."""

from typing import ClassVar

import numpy as np

from app.kernels.plain_problems import SoftmaxProblem
from app.layers.base import Layer, Parameters, Shape


class Softmax(Layer):
    """y[k] = exp(x[k] - max x) / Σ_j exp(x[j] - max x); subtracting the maximum avoids overflow.

    A whole row becomes NaN if it contains NaN or +infinity, or only -infinity.
    """

    kind: ClassVar[str] = "softmax"
    operation: ClassVar[str] = "softmax"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (classes) → (classes)."""
        if len(shape) != 1:
            raise self.input_shape_error(shape, "(classes,): put a Flatten before it")
        return shape

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite the scores x, (B, classes), with their probabilities, and return it."""
        with np.errstate(invalid="ignore"):  # infinity - infinity
            x -= x.max(axis=1, keepdims=True)
        np.exp(x, out=x)
        x /= x.sum(axis=1, keepdims=True)
        return x

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> SoftmaxProblem | None:
        """Return the problem that a kernel of this layer alone solves; None if the input and output types differ."""
        return SoftmaxProblem(shape[0], input_dtype) if input_dtype == output_dtype else None
