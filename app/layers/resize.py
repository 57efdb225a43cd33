"""Enlarge images by bilinear interpolation, in exact integer arithmetic, by one of two rules."""

from typing import ClassVar, NamedTuple

import numpy as np

from app.kernels.plain_problems import ResizeProblem
from app.layers.base import Layer, Parameters, Shape

MAX_SIZE = 1024  # a sum is at most 255 * (2 * size)**2 and half a divisor; it must stay below 2**31
RULES = {
    "edge": "the border is repeated beyond the image; rounded to the nearest byte, halves upwards",
    "course": "pixels beyond the image are 0; cut to a whole number",
}


class Neighbours(NamedTuple):
    """The two input pixels around each output pixel along one axis, and their integer weights; each int32 (size,).

    low, high: their indices. near, far: their weights, which add up to 2 · size; pixels beyond the image may have 0.
    """

    low: np.ndarray
    high: np.ndarray
    near: np.ndarray  # weights of low
    far: np.ndarray  # weights of high


class Resize(Layer):
    """Resize images of bytes, (C, H, W) → (C, size, size): each the weighted mean of the four pixels around its centre.

    Pixel centres lie at halves: output i of ``size`` lies at (i + 1/2) · L / size - 1/2 on an axis of L pixels. This is
    a whole number of units of 1 / (2 · size), so the mean is an exact fraction with the divisor (2 · size)². ``rule``
    says what lies beyond the image and how the mean is rounded to a byte, see ``RULES``: ``edge`` is this project's
    rule, ``course`` is the rule by which older systems made their data files.
    """

    size: int
    rule: str = "edge"
    kind: ClassVar[str] = "resize"
    operation: ClassVar[str] = "resize"
    keeps_bytes: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C, size, size)."""
        if self.rule not in RULES:
            raise self.input_shape_error(shape, f"a rule of {' or '.join(RULES)}, not {self.rule!r}")
        if not 1 <= self.size <= MAX_SIZE:
            raise self.input_shape_error(shape, f"a size of 1 to {MAX_SIZE:,}")
        if len(shape) != 3:
            raise self.input_shape_error(shape, "(C, H, W)")
        return shape[0], self.size, self.size

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Interpolate along rows, then columns, and round once. Returns uint8; raises ValueError unless x is uint8."""
        if x.dtype != np.uint8:
            raise ValueError(f"layer {self.name} ({self.kind}) reads uint8, not {x.dtype}")
        sums = self._interpolate_axis(self._interpolate_axis(x, 3), 2)
        sums += self.rounding_offset
        sums //= self.divisor
        return sums.astype(np.uint8)

    @property
    def divisor(self) -> int:
        """Return the divisor of every mean: (2 · size)²."""
        return 4 * self.size**2

    @property
    def rounding_offset(self) -> int:
        """Return the number added to a sum before the integer division: half the divisor to round, 0 to cut."""
        return self.divisor // 2 if self.rule == "edge" else 0

    def neighbours(self, length: int) -> Neighbours:
        """Return the two input pixels around each output pixel on an axis of ``length`` pixels, and their weights."""
        unit = 2 * self.size
        at = (2 * np.arange(self.size, dtype=np.int32) + 1) * length - self.size
        if self.rule == "edge":
            at = at.clip(0, (length - 1) * unit)
        low, far = np.divmod(at, unit)
        near = unit - far
        if self.rule == "course":
            near[low < 0] = far[low + 1 == length] = 0
        pixels = (np.clip(place, 0, length - 1) for place in (low, low + 1))
        return Neighbours(*(part.astype(np.int32) for part in (*pixels, near, far)))

    def _interpolate_axis(self, x: np.ndarray, axis: int) -> np.ndarray:
        """Return the weighted sums of the two input pixels around each output along one axis, int32."""
        low, high, near, far = self.neighbours(x.shape[axis])
        near, far = (weights.reshape(-1, *(1,) * (x.ndim - 1 - axis)) for weights in (near, far))
        sums = x.take(low, axis) * near
        sums += x.take(high, axis) * far
        return sums

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> ResizeProblem | None:
        """Return the problem that a kernel of this layer alone solves, from bytes to bytes; None for other input."""
        channels, height, width = shape
        return ResizeProblem(channels, height, width, self.size, self.rule) if input_dtype == "uint8" else None
