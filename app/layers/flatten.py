"""Define Flatten, which turns feature maps into one row of features per image."""

from math import prod
from typing import ClassVar

import numpy as np

from app.layers.base import Layer, Parameters, Shape


class Flatten(Layer):
    """Flatten (C, H, W) to (H·W·C,), in the order H, W, C that the weights files expect.

    On the GPU it takes no time: activations stay in C, H, W order, and the weight rows of the next fully connected
    layer are permuted once, when they are loaded (see ``channels_first_permutation``).
    """

    kind: ClassVar[str] = "flatten"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C·H·W)."""
        if len(shape) != 3:
            raise self.input_shape_error(shape, "(C, H, W)")
        return (prod(shape),)

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Reorder and flatten the features: (B, C, H, W) → (B, H·W·C)."""
        return x.transpose(0, 2, 3, 1).reshape(len(x), -1)


def channels_first_permutation(shape: Shape) -> np.ndarray:
    """Return, for each feature in C, H, W order, its index in H, W, C order. shape: (C, H, W)."""
    channels, height, width = shape
    return np.arange(prod(shape)).reshape(height, width, channels).transpose(2, 0, 1).ravel()
