"""The interface of every layer: shape rule, parameters, NumPy reference and its part on the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.base.errors import UserError
from app.kernels.problems import Problem

Shape = tuple[int, ...]  # one image's activations: (C, H, W) or (features,)
Parameters = Mapping[str, np.ndarray]  # names and layouts as in the weights file


@dataclass(frozen=True)
class Layer(ABC):
    """A layer of a network. Layers are data: they hold no arrays."""

    name: str
    kind: ClassVar[str]
    # The registry's name of the GPU operation that this layer is; None: it only relabels its input.
    operation: ClassVar[str | None] = None
    # uint8 in, uint8 out (Resize): the next layer applies the pixel scale.
    keeps_bytes: ClassVar[bool] = False

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of one image's output. Raises UserError where the layer does not fit."""

    @abstractmethod
    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute the layer in NumPy, in the float type of x: (B, *input shape) → (B, *output shape).

        It is the definition of correct. Activations are N, C, H, W whatever their strides. May work in place on x.
        """

    def parameter_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Return the shapes of the arrays in the weights file by name.

        A ``<name>_bias`` entry is optional there unless the layer's ``bias`` is True; if that is False, there is none.
        """
        return {}

    def flops(self, shape: Shape) -> int:
        """Floating-point operations for one image (a multiply-add is two): those of its problem, 0 without one."""
        stored = "uint8" if self.keeps_bytes else "float32"
        problem = self.problem(shape, [], bias=False, input_dtype=stored, dtype="float32", output_dtype="float32")
        return 0 if problem is None else problem.flops

    def problem(
        self, shape: Shape, epilogue: Sequence[Layer], *, bias: bool, input_dtype: str, dtype: str, output_dtype: str
    ) -> Problem | None:
        """Return the problem of a kernel that computes this layer and then the layers of ``epilogue``.

        input_dtype, output_dtype: types of the activations in memory, uint8 for raw images; dtype: type of the
        multiplication. Returns None if this layer cannot take these layers into its epilogue, or cannot convert between
        the types. By default a layer takes nothing into its epilogue.
        """
        return None if epilogue else self.own_problem(shape, input_dtype, output_dtype)

    def own_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> Problem | None:
        """Return the problem of this layer in a kernel of its own; None if it cannot convert between the types."""
        return None

    def device_parameters(
        self, shape: Shape, parameters: Parameters, *, scale: float, flattened: Shape | None
    ) -> list[np.ndarray | None]:
        """Return the arrays that a kernel takes between input and output: float64, in the kernels' layout.

        scale: a factor of the input, multiplied into the weights. flattened: the (C, H, W) shape of the input before it
        was flattened, if it was. Raises UserError if the input has a scale and there are no weights.
        """
        if scale != 1:
            raise UserError(f"layer {self.name} ({self.kind}) cannot scale images: put a Conv2d or Linear layer first")
        return []

    def fail(self, shape: Shape, needs: str) -> UserError:
        """Return the error for an input shape that this layer cannot take."""
        return UserError(f"layer {self.name} ({self.kind}) got input of shape {shape}, but needs {needs}")
