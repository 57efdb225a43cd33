"""Define the interface of layers: shape rule, parameters, NumPy reference and GPU problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.kernels.problems import Problem

Shape = tuple[int, ...]  # one image's activations: (C, H, W) or (features,)
Parameters = Mapping[str, np.ndarray]  # names and layouts as in the weights file


class Layer(Frozen, ABC):
    """A layer of a network. It holds settings; arrays, such as weights, are passed to its methods."""

    name: str
    kind: ClassVar[str]
    # The registry's name of this layer's GPU operation; None if the layer only reshapes its input.
    operation: ClassVar[str | None] = None
    # Whether the layer maps uint8 to uint8 (Resize), so that the next layer applies the pixel scale.
    keeps_bytes: ClassVar[bool] = False

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return one image's output shape. Raises UserError if the layer does not fit the input shape."""

    @abstractmethod
    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute the layer in NumPy, in the float type of x: (B, *input shape) → (B, *output shape).

        This defines the correct result. Axes are N, C, H, W in any memory order. May overwrite x.
        """

    def parameter_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Return the shapes of the layer's arrays in the weights file, by name.

        ``<name>_bias`` is optional in the file if the layer's ``bias`` is None, required if True, absent if False.
        """
        return {}

    def flops(self, shape: Shape) -> int:
        """Return the FLOPs for one image of ``shape``; a multiply-add counts as two. Layers without a kernel have 0."""
        stored = "uint8" if self.keeps_bytes else "float32"
        problem = self.kernel_problem(
            shape, [], bias=False, input_dtype=stored, dtype="float32", output_dtype="float32"
        )
        return 0 if problem is None else problem.flops

    def kernel_problem(
        self, shape: Shape, epilogue: Sequence[Layer], *, bias: bool, input_dtype: str, dtype: str, output_dtype: str
    ) -> Problem | None:
        """Return the problem of a kernel that computes this layer and then the layers of ``epilogue``.

        input_dtype, output_dtype: types of the activations in memory, uint8 for raw images; dtype: type of the
        multiplication; bias: whether the layer has one. Returns None if it cannot convert between the types,
        or cannot fuse this epilogue. By default, a layer can fuse none.
        """
        return None if epilogue else self.standalone_problem(shape, input_dtype, output_dtype)

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> Problem | None:
        """Return the problem that a kernel of this layer alone solves; None if it cannot convert between the types."""
        return None

    def device_parameters(
        self, shape: Shape, parameters: Parameters, *, scale: float, flattened: Shape | None
    ) -> list[np.ndarray | None]:
        """Return the layer's weights and bias as its kernels take them, in float64; empty if the layer has none.

        scale: factor of the input, multiplied into the weights. flattened: the input's (C, H, W) shape before
        flattening, if it was flattened. Raises UserError if ``scale`` is not 1 and the layer has no weights.
        """
        if scale != 1:
            raise UserError(f"layer {self.name} ({self.kind}) cannot scale images: put a Conv2d or Linear layer first")
        return []

    def input_shape_error(self, shape: Shape, needs: str) -> UserError:
        """Return the error for an input shape that this layer cannot take. needs: what it takes instead."""
        return UserError(f"layer {self.name} ({self.kind}) got input of shape {shape}, but needs {needs}")
