"""Define average and maximum pooling."""

from functools import cache, reduce
from typing import ClassVar

import numpy as np

from app.kernels.problems import PoolProblem, pooling_window_count
from app.layers.base import Layer, Parameters, Shape


class Pool(Layer):
    """Reduce each window of ``window`` x ``window`` pixels, every ``stride`` (default: window) pixels, to one value.

    The first windows begin ``padding`` rows and columns before the image; the last ones end at most ``padding`` +
    ``extra_padding`` after it. Windows reduce only their pixels inside the image. A mean divides by the number of
    these pixels; with ``count_padding``, pixels of padding count, too. Without ``ceil``, rows and columns that do not
    fill a window are dropped; with it, windows that begin before the image's end may reach beyond the padding.
    This equals PyTorch's padding, ceil_mode and count_include_pad.
    """

    window: int
    stride: int | None = None
    ceil: bool = False
    padding: int = 0
    extra_padding: int = 0
    operation: ClassVar[str] = "pool"
    is_max: ClassVar[bool]

    @property
    def effective_stride(self) -> int:
        """Return the stride, by default the window's size."""
        return self.window if self.stride is None else self.stride

    @property
    def is_padded(self) -> bool:
        """Return whether there is padding on any side."""
        return self.padding + self.extra_padding > 0

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (C, PH, PW), with window P, stride S and E = H + 2 padding + extra_padding.

        PH = (E-P)//S + 1; with ``ceil`` PH = min(1 + ceil((E-P)/S), ceil((H + padding)/S)). PW is like PH.
        """
        if self.window < 1 or self.effective_stride < 1:
            raise self.input_shape_error(shape, "a window and a stride of at least 1")
        behind = self.padding + self.extra_padding
        if min(self.padding, self.extra_padding) < 0 or behind >= self.window:
            raise self.input_shape_error(shape, f"less padding than its window of {self.window}, not {behind}")
        least = max(self.window - self.padding - behind, 1)
        if len(shape) != 3 or min(shape[1:]) < least:
            raise self.input_shape_error(shape, f"(C, H, W) with H and W at least {least}")
        rule = self.window, self.effective_stride, self.ceil, self.padding, behind
        return shape[0], *(pooling_window_count(size, *rule) for size in shape[1:])

    def window_overhangs(self, shape: Shape) -> list[tuple[int, int]]:
        """Return how many rows before and after an image (C, H, W) the windows cover, then how many columns."""
        reach = zip(shape[1:], self.output_shape(shape)[1:], strict=True)
        ends = [(count - 1) * self.effective_stride - self.padding + self.window - size for size, count in reach]
        return [(self.padding, max(end, 0)) for end in ends]

    def window_pixel_counts(self, shape: Shape) -> np.ndarray:
        """Return the divisor of each window's mean, its number of pixels, in an image (C, H, W): (PH, PW) int64.

        Padding counts only with ``count_padding``. An axis has length 1 if every window counts fully along it.
        """
        counts_padding = getattr(self, "count_padding", False)
        ahead = self.padding * counts_padding
        rows, columns = _window_extents(self, shape, ahead, ahead + self.extra_padding * counts_padding)
        return np.outer(rows, columns)

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Pool (B, C, H, W) → (B, C, PH, PW): reduce the rows of each window, then its columns."""
        shape = x.shape[1:]
        _, height, width = self.output_shape(shape)
        combine, beyond = (np.maximum, -np.inf) if self.is_max else (np.add, 0.0)
        margins = self.window_overhangs(shape)
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
        """Return the problem that a kernel of this layer alone solves; None if the input and output types differ."""
        if input_dtype != output_dtype:
            return None
        channels, height, width = shape
        window, padding = (self.window, self.effective_stride, self.is_max), (self.padding, self.extra_padding)
        counted = getattr(self, "count_padding", False) and self.is_padded
        return PoolProblem(channels, height, width, *window, input_dtype, self.ceil, *padding, counted)


@cache
def _window_extents(layer: Pool, shape: Shape, before: int, behind: int) -> list[list[int]]:
    """Return, for windows in an image (C, H, W), how many rows of each count in the mean, and how many columns.

    before, behind: rows and columns of padding that count at either end. A list has one number if all rows count.
    """
    extents = []
    for size, count in zip(shape[1:], layer.output_shape(shape)[1:], strict=True):
        starts = [at * layer.effective_stride - layer.padding for at in range(count)]
        found = [min(start + layer.window, size + behind) - max(start, -before) for start in starts]
        extents.append(found if min(found) < layer.window else [layer.window])
    return extents


class AvgPool(Pool):
    """Average pooling: the mean of each window."""

    count_padding: bool = False
    kind: ClassVar[str] = "avgpool"
    is_max: ClassVar[bool] = False


class MaxPool(Pool):
    """Maximum pooling: the maximum of each window."""

    kind: ClassVar[str] = "maxpool"
    is_max: ClassVar[bool] = True
