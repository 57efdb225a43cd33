"""Define the activations, element-wise functions: ReLU, ReLU6, LeakyReLU, tanh and sigmoid."""

from math import prod
from typing import ClassVar

import numpy as np

from app.kernels.plain_problems import DEFAULT_SLOPE, ActivationProblem
from app.layers.base import Layer, Parameters, Shape


class Activation(Layer):
    """A layer that applies a function y = f(x) to each element. f never decreases, and f(NaN) is NaN.

    ``kind`` is the name of f; in capitals, it is the name of f's struct in ``app/kernels/include/activations.cuh``.
    """

    operation: ClassVar[str] = "activation"

    @property
    def problem_name(self) -> str:
        """Return the name of f in kernel problems, such as "relu"."""
        return self.kind

    def output_shape(self, shape: Shape) -> Shape:
        """Return ``shape``, which activations do not change."""
        return shape

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> ActivationProblem | None:
        """Return the problem that a kernel of this layer alone solves; None if the input and output types differ."""
        return ActivationProblem(prod(shape), self.problem_name, input_dtype) if input_dtype == output_dtype else None


class Relu(Activation):
    """y = max(x, 0)."""

    kind: ClassVar[str] = "relu"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite x, of any shape and float type, with max(x, 0), and return it."""
        # Zeros for one image instead of a scalar 0: NumPy's loop over two arrays is three times as fast.
        return np.maximum(x, np.zeros_like(x[:1]), out=x)


class Relu6(Activation):
    """y = min(max(x, 0), 6)."""

    kind: ClassVar[str] = "relu6"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite x, of any shape and float type, with min(max(x, 0), 6), and return it."""
        return np.clip(x, 0, 6, out=x)


class LeakyRelu(Activation):
    """y = x for x ≥ 0, slope · x for x < 0. slope: from 0 to 1, so that errors do not grow."""

    slope: float = DEFAULT_SLOPE
    kind: ClassVar[str] = "leakyrelu"

    @property
    def problem_name(self) -> str:
        """Return the name of f in kernel problems, with the slope unless it is the default, such as "leakyrelu:0.2"."""
        return self.kind if self.slope == DEFAULT_SLOPE else f"{self.kind}:{self.slope!r}"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite x, of any shape and float type, with x or, for x < 0, slope · x, and return it."""
        return np.multiply(x, x.dtype.type(self.slope), out=x, where=x < 0)


class Tanh(Activation):
    """y = tanh(x)."""

    kind: ClassVar[str] = "tanh"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite x, of any shape and float type, with tanh(x), and return it."""
        return np.tanh(x, out=x)


class Sigmoid(Activation):
    """y = 1 / (1 + exp(-x))."""

    kind: ClassVar[str] = "sigmoid"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Overwrite x, of any shape and float type, with 1 / (1 + exp(-x)), and return it."""
        with np.errstate(over="ignore"):  # far below 0, exp(-x) is infinite and its reciprocal 0, as it should be
            np.exp(np.negative(x, out=x), out=x)
        x += 1
        return np.reciprocal(x, out=x)


# Kind → class of each activation; oracles and tests iterate over it.
ACTIVATIONS: dict[str, type[Activation]] = {layer.kind: layer for layer in (Relu, Relu6, LeakyRelu, Tanh, Sigmoid)}


def activation_layer(problem_name: str, name: str = "") -> Activation:
    """Return the activation that ``problem_name`` names, such as "relu" or "leakyrelu:0.2". name: the layer's name."""
    kind, *settings = problem_name.split(":")
    return ACTIVATIONS[kind](name, *map(float, settings))
