"""Average and maximum pooling."""

from functools import cache, reduce
from typing import ClassVar

import numpy as np

from app.kernels.problems import PoolProblem, pooling_window_count
from app.layers.base import Layer, Parameters, Shape


class Pool(Layer):
    """Reduce each window of ``window`` x ``window`` pixels, every ``stride`` (default: window) pixels, to one value.

    Without ``ceil``, rows and columns that do not fill a window are dropped. With ``ceil``, windows may cross the
    bottom or right border and reduce only the pixels inside the image; a mean divides by their number. This equals
    PyTorch's ceil_mode, and ONNX's with count_include_pad = 0.
    """

    window: int
    stride: int | None = None
    ceil: bool = False
    operation: ClassVar[str] = "pool"
    is_max: ClassVar[bool]

    @property
    def effective_stride(self) -> int:
        """The stride; without one, the window's size."""
        return self.window if self.stride is None else self.stride

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C, (H-P)//S + 1, (W-P)//S + 1).

        With ``ceil``, for H and for W: min(1 + ceil((H-P)/S), ceil(H/S)); every window begins inside the image.
        """
        if self.window < 1 or self.effective_stride < 1:
            raise self.input_shape_error(shape, "a window and a stride of at least 1")
        if len(shape) != 3 or min(shape[1:]) < self.window:
            raise self.input_shape_error(shape, f"(C, H, W) with H and W at least {self.window}")
        return shape[0], *(
            pooling_window_count(size, self.window, self.effective_stride, self.ceil) for size in shape[1:]
        )

    def end_padding(self, shape: Shape) -> list[tuple[int, int]]:
        """Return padding (0, rows), (0, columns) by which the last windows cross the border of an image (C, H, W)."""
        return [(0, self.window - inside[-1]) for inside in _window_extents_inside(self, shape)]

    def window_pixel_counts(self, shape: Shape) -> np.ndarray:
        """Return how many pixels of each window lie inside an image (C, H, W): (PH, PW) integers.

        An axis has length 1 if all windows lie inside along it.
        """
        rows, columns = (
            inside if inside[-1] < self.window else [self.window] for inside in _window_extents_inside(self, shape)
        )
        return np.outer(rows, columns)

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Reduce the rows of each window, then its columns. Padding does not change the results."""
        shape = x.shape[1:]
        _, height, width = self.output_shape(shape)
        combine, beyond = (np.maximum, -np.inf) if self.is_max else (np.add, 0.0)
        margins = self.end_padding(shape)
        if any(map(max, margins)):  # padded as N, H, W, C, the order in memory after a convolution
            padded = np.pad(x.transpose(0, 2, 3, 1), ((0, 0), *margins, (0, 0)), constant_values=beyond)
            x = padded.transpose(0, 3, 1, 2)
        starts = range(self.window)
        rows = reduce(
            combine, (x[:, :, p : p + self.effective_stride * (height - 1) + 1 : self.effective_stride] for p in starts)
        )
        result = reduce(
            combine,
            (rows[:, :, :, q : q + self.effective_stride * (width - 1) + 1 : self.effective_stride] for q in starts),
        )
        return result if self.is_max else result / self.window_pixel_counts(shape).astype(x.dtype)

    def standalone_problem(self, shape: Shape, input_dtype: str, output_dtype: str) -> PoolProblem | None:
        """Return the problem of a kernel for this layer alone; input and output have one type."""
        if input_dtype != output_dtype:
            return None
        channels, height, width = shape
        return PoolProblem(
            channels, height, width, self.window, self.effective_stride, self.is_max, input_dtype, self.ceil
        )


@cache
def _window_extents_inside(layer: Pool, shape: Shape) -> list[list[int]]:
    """Return for each axis of an image (C, H, W) how many rows, or columns, of each window lie inside."""
    sizes = zip(shape[1:], layer.output_shape(shape)[1:], strict=True)
    return [[min(layer.window, size - at * layer.effective_stride) for at in range(count)] for size, count in sizes]


class AvgPool(Pool):
    """The mean of each window."""

    kind: ClassVar[str] = "avgpool"
    is_max: ClassVar[bool] = False


class MaxPool(Pool):
    """The maximum of each window."""

    kind: ClassVar[str] = "maxpool"
    is_max: ClassVar[bool] = True
