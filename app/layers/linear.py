"""Define the fully connected layer."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from app.kernels.problems import LinearProblem
from app.layers.activation import Activation
from app.layers.argmax import Argmax
from app.layers.base import Layer, Parameters, Shape
from app.layers.flatten import channels_first_permutation
from app.layers.softmax import Softmax


class Linear(Layer):
    """A fully connected layer, y = x w (+ bias), with ``outputs`` features.

    bias: True requires a bias in the weights, False forbids one, None accepts both.
    """

    outputs: int
    bias: bool | None = None
    kind: ClassVar[str] = "linear"
    operation: ClassVar[str] = "gemm"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (features) → (outputs)."""
        if len(shape) != 1:
            raise self.input_shape_error(shape, "(features,): put a Flatten before it")
        return (self.outputs,)

    def parameter_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Return the shapes of the weights (in, out) and the bias (out)."""
        bias = {} if self.bias is False else {f"{self.name}_bias": (self.outputs,)}
        return {self.name: (shape[0], self.outputs), **bias}

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute y: (B, in) → (B, outputs). The bits of an image's result do not depend on the other images."""
        from app.layers.products import multiply_rows  # imported only here: runs on a GPU do not need it

        y = multiply_rows(x, parameters[self.name].astype(x.dtype, copy=False))
        bias = parameters.get(f"{self.name}_bias")
        if bias is not None:
            y += bias.astype(x.dtype, copy=False)
        return y

    def kernel_problem(
        self, shape: Shape, epilogue: Sequence[Layer], *, bias: bool, input_dtype: str, dtype: str, output_dtype: str
    ) -> LinearProblem | None:
        """Return the problem. The epilogue may be an activation, an argmax, or a softmax and then an argmax."""
        kinds = [type(layer) for layer in epilogue]
        activation = epilogue[0].problem_name if len(epilogue) == 1 and isinstance(epilogue[0], Activation) else ""
        if not activation and kinds not in ([], [Argmax], [Softmax, Argmax]):
            return None
        types = input_dtype, dtype, output_dtype
        return LinearProblem(
            *(shape[0], self.outputs, bias, activation, Argmax in kinds, *types), softmax=Softmax in kinds
        )

    def device_parameters(
        self, shape: Shape, parameters: Parameters, *, scale: float, flattened: Shape | None
    ) -> list[np.ndarray | None]:
        """Return the weights (in, out), with rows in the GPU's order of features (C, H, W), and the bias."""
        weights = parameters[self.name].astype(np.float64) * scale
        if flattened is not None:
            weights = weights[channels_first_permutation(flattened)]
        return [weights, parameters.get(f"{self.name}_bias")]
