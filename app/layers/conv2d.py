"""Define the two-dimensional convolution (cross-correlation), optionally with zero padding."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from app.kernels.problems import ConvProblem
from app.layers.activation import Activation
from app.layers.base import Layer, Parameters, Shape
from app.layers.pool import Pool

IM2COL_BYTES = 2 << 20


class Conv2d(Layer):
    """y[b,m,h,w] = Σ_c Σ_p Σ_q x[b, c, h·S+p-P, w·S+q-P] · k[p,q,c,m] (+ bias[m]), with K x K filters and stride S.

    x is zero beyond the image: padding is P rows and columns of zeros on all four sides, 0 <= P < K. bias: True
    requires a bias in the weights, False forbids one, None accepts both.
    """

    maps: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool | None = None
    kind: ClassVar[str] = "conv2d"
    operation: ClassVar[str] = "conv"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape: (C, H, W) → (M, (H+2P-K)//S + 1, (W+2P-K)//S + 1)."""
        if self.kernel < 1 or self.stride < 1:
            raise self.input_shape_error(shape, "a kernel and a stride of at least 1")
        if not 0 <= self.padding < self.kernel:
            raise self.input_shape_error(
                shape, f"a padding of 0 to {self.kernel - 1}, less than its kernel, not {self.padding}"
            )
        least = max(self.kernel - 2 * self.padding, 1)
        if len(shape) != 3 or min(shape[1:]) < least:
            raise self.input_shape_error(shape, f"(C, H, W) with H and W at least {least}")
        height, width = ((size + 2 * self.padding - self.kernel) // self.stride + 1 for size in shape[1:])
        return self.maps, height, width

    def parameter_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Return the shapes of the filters (K, K, in, out) and the bias (out)."""
        bias = {} if self.bias is False else {f"{self.name}_bias": (self.maps,)}
        return {self.name: (self.kernel, self.kernel, shape[0], self.maps), **bias}

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Convolve by im2col, for as many images as fit in the cache, and one matrix product per image.

        One product for several images would be no faster, and its rounding would depend on the number of images. The
        result lies in memory in N, H, W, C order, in which a row of a window is contiguous.
        """
        from app.layers.products import multiply_rows  # imported only here: runs on a GPU do not need it

        filters = parameters[self.name].astype(x.dtype, copy=False).reshape(-1, self.maps)
        maps, height, width = self.output_shape(x.shape[1:])
        windows = sliding_windows(x, self.kernel, self.stride, self.padding)
        y = np.empty((len(x), height, width, maps), x.dtype)
        few = max(IM2COL_BYTES // (height * width * len(filters) * x.itemsize), 1)
        memory = np.empty(
            min(few, len(x)) * height * width * len(filters), x.dtype
        )  # allocated once: allocation is slow
        for at in range(0, len(x), few):
            matrix = im2col(windows[at : at + few], memory)
            if height * width == 1:  # a product of one row is many times slower
                y[at : at + few] = multiply_rows(matrix, filters).reshape(-1, 1, 1, maps)
            else:
                pixels = matrix.reshape(-1, height * width, len(filters))
                np.matmul(pixels, filters, out=y[at : at + few].reshape(-1, height * width, maps))
        bias = parameters.get(f"{self.name}_bias")
        if bias is not None:
            y += bias.astype(x.dtype, copy=False)
        return y.transpose(0, 3, 1, 2)

    def kernel_problem(
        self, shape: Shape, epilogue: Sequence[Layer], *, bias: bool, input_dtype: str, dtype: str, output_dtype: str
    ) -> ConvProblem | None:
        """Return the problem. The epilogue may be an activation, then pooling with stride = window, without padding."""
        rest = list(epilogue)
        activation = ""
        if rest and isinstance(rest[0], Activation):
            activation = rest[0].problem_name
            rest.pop(0)
        pool, is_max, ceil = 1, False, False
        if rest and isinstance(rest[0], Pool) and rest[0].window == rest[0].effective_stride and not rest[0].is_padded:
            pool, is_max, ceil = rest[0].window, rest[0].is_max, rest[0].ceil
            rest.pop(0)
        if rest:
            return None
        channels, height, width = shape
        sizes = channels, height, width, self.maps, self.kernel, self.stride
        types = input_dtype, dtype, output_dtype
        return ConvProblem(*sizes, bias, activation, pool, is_max, *types, self.padding, ceil)

    def device_parameters(
        self, shape: Shape, parameters: Parameters, *, scale: float, flattened: Shape | None
    ) -> list[np.ndarray | None]:
        """Return filters × ``scale`` as (C, K, K, M), the order in which kernels add terms, and the bias or None."""
        filters = parameters[self.name].astype(np.float64).transpose(2, 0, 1, 3) * scale
        return [filters, parameters.get(f"{self.name}_bias")]


def sliding_windows(x: np.ndarray, kernel: int, stride: int, padding: int) -> np.ndarray:
    """Return a view of all windows of images, of a copy if padded: (B, C, H, W) → (B, OH, OW, C, K, K)."""
    x = x.transpose(0, 2, 3, 1)
    if padding:
        x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return windows[:, ::stride, ::stride]


def im2col(windows: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Copy windows (B, OH, OW, C, K, K) to ``memory``; return it as a matrix (B·OH·OW, K·K·C), one window per row."""
    images, height, width, channels, kernel, _ = windows.shape
    order = (0, 1, 2, 4, 5, 3) if channels > 1 else (4, 5, 3, 0, 1, 2)
    copied = windows.transpose(order)
    target = memory[: windows.size].reshape(copied.shape)
    np.copyto(target, copied)
    if channels > 1:
        return target.reshape(images * height * width, -1)
    return target.reshape(kernel * kernel, -1).T
