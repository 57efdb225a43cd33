"""Average and maximum pooling."""

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np

from app.kernels.problems import PoolProblem
from app.layers.base import Layer, Parameters, Shape


@dataclass(frozen=True)
class Pool(Layer):
    """Reduce each window of ``window`` x ``window`` pixels, every ``stride`` (default: window) pixels, to one value.

    Rows and columns that do not fill a window are dropped.
    """

    window: int
    stride: int | None = None
    operation: ClassVar[str] = "pool"
    is_max: ClassVar[bool]

    @property
    def step(self) -> int:
        """The stride; without one, the window's size."""
        return self.window if self.stride is None else self.stride

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C, (H-P)//S + 1, (W-P)//S + 1)."""
        if self.window < 1 or self.step < 1:
            raise self.fail(shape, "a window and a stride of at least 1")
        if len(shape) != 3 or min(shape[1:]) < self.window:
            raise self.fail(shape, f"(C, H, W) with H and W at least {self.window}")
        channels, height, width = shape
        return channels, (height - self.window) // self.step + 1, (width - self.window) // self.step + 1

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Combine the rows of each window, then its columns."""
        _, height, width = self.output_shape(x.shape[1:])
        combine = np.maximum if self.is_max else np.add
        starts = range(self.window)
        rows = reduce(combine, (x[:, :, p : p + self.step * (height - 1) + 1 : self.step] for p in starts))
        result = reduce(combine, (rows[:, :, :, q : q + self.step * (width - 1) + 1 : self.step] for q in starts))
        return result if self.is_max else result / self.window**2

    def own_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> PoolProblem | None:
        """Return the problem of a kernel of its own; input and output have one type."""
        if input_dtype != output_dtype:
            return None
        channels, height, width = shape
        return PoolProblem(channels, height, width, self.window, self.step, self.is_max, input_dtype)


@dataclass(frozen=True)
class AvgPool(Pool):
    """The mean of each window."""

    kind: ClassVar[str] = "avgpool"
    is_max: ClassVar[bool] = False


@dataclass(frozen=True)
class MaxPool(Pool):
    """The maximum of each window."""

    kind: ClassVar[str] = "maxpool"
    is_max: ClassVar[bool] = True
