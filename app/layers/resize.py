"""Enlarge images by bilinear interpolation, in exact integer arithmetic."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from app.kernels.problems import ResizeProblem
from app.layers.base import Layer, Parameters, Shape

MAX_SIZE = 1024  # a sum is at most 255 * (2 * size)**2 and half a divisor; it must stay below 2**31


@dataclass(frozen=True)
class Resize(Layer):
    """(C, H, W) bytes → (C, size, size) bytes, each the weighted mean of the four pixels around its centre.

    Pixels have their centres at halves: output i of ``size`` lies at (i + 1/2) · L / size - 1/2 on an axis of L
    pixels, moved to the nearest pixel where that is outside. In units of 1 / (2 · size) this is a whole number, so the
    mean is an exact fraction with the divisor (2 · size)²; it is rounded to the nearest byte, halves upwards.
    """

    size: int
    kind: ClassVar[str] = "resize"
    operation: ClassVar[str] = "resize"
    keeps_bytes: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C, size, size)."""
        if not 1 <= self.size <= MAX_SIZE:
            raise self.fail(shape, f"a size of 1 to {MAX_SIZE:,}")
        if len(shape) != 3:
            raise self.fail(shape, "(C, H, W)")
        return shape[0], self.size, self.size

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Interpolate along the rows, then the columns; only the last step rounds. ValueError unless x is uint8."""
        if x.dtype != np.uint8:
            raise ValueError(f"layer {self.name} ({self.kind}) reads uint8, not {x.dtype}")
        half = 2 * self.size**2
        sums = self._between(self._between(x, 3), 2)
        sums += half
        sums //= 2 * half
        return sums.astype(np.uint8)

    def _between(self, x: np.ndarray, axis: int) -> np.ndarray:
        """Along one axis: the two pixels around each output, weighted by whole numbers whose sum is 2 · size. int32."""
        length, unit = x.shape[axis], 2 * self.size
        at = np.clip((2 * np.arange(self.size, dtype=np.int32) + 1) * length - self.size, 0, (length - 1) * unit)
        low, far = (part.astype(np.int32) for part in np.divmod(at, unit))
        far = far.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        sums = x.take(low, axis) * (unit - far)
        sums += x.take(np.minimum(low + 1, length - 1), axis) * far
        return sums

    def own_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> ResizeProblem | None:
        """Return the problem: bytes in, bytes out, whatever ``output_dtype``."""
        channels, height, width = shape
        return ResizeProblem(channels, height, width, self.size) if input_dtype == "uint8" else None
