"""From scores to the label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.kernels.problems import ArgmaxProblem
from app.layers.base import Layer, Parameters, Shape


@dataclass(frozen=True)
class Argmax(Layer):
    """The index of the greatest score, the first among equals, as one byte."""

    kind: ClassVar[str] = "argmax"
    operation: ClassVar[str] = "argmax"

    def output_shape(self, shape: Shape) -> Shape:
        """(classes) → (); at most 256 classes."""
        if len(shape) != 1 or shape[0] > 256:
            raise self.fail(shape, "(classes,) with at most 256 classes")
        return ()

    def flops(self, shape: Shape) -> int:
        """One comparison a score."""
        return shape[0]

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """(B, classes) → (B) uint8."""
        return x.argmax(axis=1).astype(np.uint8)

    def problem(
        self, shape: Shape, epilogue: Sequence[Layer], *, bias: bool, input_dtype: str, dtype: str, output_dtype: str
    ) -> ArgmaxProblem | None:
        """A pass of its own; takes nothing into its epilogue. Labels are bytes, whatever ``output_dtype``."""
        return None if epilogue or input_dtype == "uint8" else ArgmaxProblem(shape[0], input_dtype)
