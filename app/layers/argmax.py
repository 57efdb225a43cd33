"""Define Argmax, which turns scores into labels."""

from typing import ClassVar

import numpy as np

from app.kernels.plain_problems import ArgmaxProblem
from app.layers.base import Layer, Parameters, Shape


class Argmax(Layer):
    """A layer that returns the index of the greatest score as one byte; of equal scores, the first index."""

    kind: ClassVar[str] = "argmax"
    operation: ClassVar[str] = "argmax"

    def output_shape(self, shape: Shape) -> Shape:
        """Return one image's output shape: (classes,) → (). Raises UserError for more than 256 classes."""
        if len(shape) != 1 or shape[0] > 256:
            raise self.input_shape_error(shape, "(classes,) with at most 256 classes")
        return ()

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the labels of scores: (B, classes) → (B,) uint8."""
        return x.argmax(axis=1).astype(np.uint8)

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> ArgmaxProblem | None:
        """Return the problem that a kernel of this layer alone solves; None for uint8 input. Labels are bytes."""
        return None if input_dtype == "uint8" else ArgmaxProblem(shape[0], input_dtype)
