"""Compute the matrix products of training on the GPU: fully connected layers, and convolutions with both gradients.

All arrays are contiguous float32 on the device, at least as large as needed, and aligned to 16 bytes. Activations are
(B, C, H, W), filters (K, K, C, M). A call enqueues one or two launches and returns; it does not check sizes. The order
of a sum depends only on the sizes of the call: results are bit-identical on any GPU.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from app.cuda.memory import device_array
from app.kernels.function import KernelFunction
from app.kernels.problems import ConvProblem
from app.kernels.variant import activation_name, ceil_div, conv_size_defines
from app.layers import Conv2d, Linear, Shape
from app.training.gpu.kernels import training_kernel
from app.training.gpu.tiles import (
    GEMM_SLICE,
    GEMM_TILES,
    TYPICAL_IMAGES,
    Tile,
    best_split,
    best_tile,
    choose_k_slice,
    split_k_length,
    threads_per_sum,
)

Array = Any  # cupy.ndarray or None
Defines = dict[str, str | int]
Sizes = tuple[int, int, int]
# A layer's three products: its output, its weights' gradient and its input's gradient. Each takes a stream, the number
# of images and the arrays (x, w, bias, y), (x, dy, dw) or (dy, w, dx).
Products = tuple[Callable[..., None], Callable[..., None], Callable[..., None]]
SUM_THREADS = 256


class Gemm:
    """Computes y = activation(alpha · op(a) op(b) + beta · y + bias), row-major; splits long sums (split-K).

    op: transposition or nothing. alpha and beta are those of BLAS; training uses 1 and 0. activation:
    "", "relu", "tanh" or "sigmoid".
    """

    def __init__(
        self, arch: str, transpose_a: bool = False, transpose_b: bool = False, bias: bool = False, activation: str = ""
    ) -> None:
        self._arch = arch
        self._defines = _epilogue_defines(bias, activation)
        self._defines |= {"TRANSPOSE_A": int(transpose_a), "TRANSPOSE_B": int(transpose_b), "BK": GEMM_SLICE}
        self._products: dict[tuple[Tile, bool], KernelFunction] = {}
        self._parts = _PartialSums(arch, bias, activation)

    def __call__(
        self,
        stream: Any,
        sizes: Sizes,
        a: Array,
        b: Array,
        bias: Array,
        y: Array,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue the product. a: (m, k), transposed (k, m); b: (k, n), transposed (n, k); bias: (n,); y: (m, n).

        sizes: (m, n, k); m · n must be below 2^31. y is not read if beta is 0. The first call with a shape may compile
        and allocate.
        """
        m, n, k = sizes
        choice = best_split(m, n, k, GEMM_TILES)
        cut = choice.parts > 1
        grid = (*choice.tile.block_counts(m, n), choice.parts)
        out = self._parts.workspace(choice.parts * m * n) if cut else y
        scalars = (*map(np.int32, (m, n, k, split_k_length(k, choice.parts))), np.float32(alpha), np.float32(beta))
        self._tile_kernel(choice.tile, cut)(stream, grid, a, b, bias, out, *scalars)
        if cut:
            self._parts.enqueue_sum(stream, (m, n, choice.parts), bias, y, alpha, beta)

    def _tile_kernel(self, tile: Tile, cut: bool) -> KernelFunction:
        """Return the kernel for a tile, compiled at its first use. cut: whether it writes partial sums."""
        if (tile, cut) not in self._products:
            defines = self._defines | tile.defines | {"SPLIT": int(cut)}
            self._products[tile, cut] = training_kernel("gemm", defines, self._arch, threads=tile.threads)
        return self._products[tile, cut]


class ImplicitProduct:
    """Computes a matrix product with windows of images, read directly from the images (implicit GEMM).

    rows, pixels: an image's result is rows x pixels. inner: number of terms that each window position adds to a sum.
    """

    def __init__(
        self, name: str, arch: str, problem: ConvProblem, rows: int, pixels: int, inner: int, epilogue: Defines
    ) -> None:
        terms = problem.kernel**2 * inner
        self._rows, self._pixels = rows, pixels
        self._tile = best_tile(rows, TYPICAL_IMAGES * pixels, terms)
        defines = conv_size_defines(problem) | self._tile.defines | epilogue | {"BK": choose_k_slice(inner, terms)}
        self._product = training_kernel(name, defines, arch, threads=self._tile.threads)

    def __call__(self, stream: Any, images: int, *arrays: Array) -> None:
        """Enqueue the product for ``images`` images. arrays: such as (x, w, bias, y) of ``conv_forward_kernel``."""
        rows, pixels = self._tile.block_counts(self._rows, images * self._pixels)
        self._product(stream, (pixels, rows, 1), *arrays, np.int32(images))


def conv_forward_kernel(arch: str, problem: ConvProblem, bias: bool = False, activation: str = "") -> ImplicitProduct:
    """Return the kernel for (x, w, bias, y): y (B, M, OH, OW) = activation(x (B, C, H, W) * w (K, K, C, M) + bias)."""
    pixels, epilogue = prod(problem.conv_output_size), _epilogue_defines(bias, activation)
    return ImplicitProduct("conv", arch, problem, problem.maps, pixels, problem.channels, epilogue)


def conv_input_gradient_kernel(arch: str, problem: ConvProblem) -> ImplicitProduct:
    """Return the kernel for (dy, w, dx): dx (B, C, H, W) from dy (B, M, OH, OW) and w (K, K, C, M)."""
    pixels = problem.height * problem.width
    return ImplicitProduct("conv_input", arch, problem, problem.channels, pixels, problem.maps, {})


class ConvFilterGradient:
    """Computes dw (K, K, C, M) from x (B, C, H, W) and dy (B, M, OH, OW), in a fixed number of partial sums."""

    def __init__(self, arch: str, problem: ConvProblem) -> None:
        self._rows, self._columns, self._pixels = problem.reduction_length, problem.maps, prod(problem.conv_output_size)
        self._split = best_split(self._rows, self._columns, TYPICAL_IMAGES * self._pixels)
        tile = self._split.tile
        defines = conv_size_defines(problem) | tile.defines | {"BK": GEMM_SLICE}
        self._product = training_kernel("conv_filters", defines, arch, threads=tile.threads)
        self._parts = _PartialSums(arch, False, "")

    def __call__(self, stream: Any, images: int, x: Array, dy: Array, dw: Array) -> None:
        """Enqueue the gradient, summed over ``images`` images."""
        rows, columns, parts = self._rows, self._columns, self._split.parts
        space = self._parts.workspace(parts * rows * columns)
        grid = (*self._split.tile.block_counts(rows, columns), parts)
        length = split_k_length(images * self._pixels, parts)
        self._product(stream, grid, x, dy, space, np.int32(images), np.int32(length))
        self._parts.enqueue_sum(stream, (rows, columns, parts), None, dw)


class _PartialSums:
    """Workspace for the partial sums of a product, (parts, rows, columns), and the launch that adds the parts."""

    def __init__(self, arch: str, bias: bool, activation: str) -> None:
        self._arch, self._defines = arch, _epilogue_defines(bias, activation) | {"THREADS": SUM_THREADS}
        self._sums: dict[int, KernelFunction] = {}
        self._space: Array = None

    def workspace(self, elements: int) -> Array:
        """Return a workspace of at least ``elements`` float32, which later calls reuse."""
        if self._space is None or self._space.size < elements:
            self._space = device_array(elements, "float32")
        return self._space

    def enqueue_sum(
        self, stream: Any, sizes: Sizes, bias: Array, y: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Enqueue y = activation(alpha · Σ workspace + beta · y + bias). sizes: rows and columns of y, partial sums."""
        rows, columns, count = sizes
        groups = threads_per_sum(count)
        if groups not in self._sums:
            defines = self._defines | {"GROUPS": groups}
            self._sums[groups] = training_kernel("sum_parts", defines, self._arch, threads=SUM_THREADS)
        grid = (ceil_div(rows * columns, SUM_THREADS // groups), 1, 1)
        scalars = (*map(np.int32, (rows * columns, columns, count)), np.float32(alpha), np.float32(beta))
        self._sums[groups](stream, grid, self._space, bias, y, *scalars)


def conv_layer_gemms(arch: str, layer: Conv2d, shape: Shape, bias: bool, activation: str) -> Products:
    """Return a convolution's implicit GEMMs for y, dw and dx. shape: of its input. activation: to fuse, or ""."""
    channels, height, width = shape
    problem = ConvProblem(channels, height, width, layer.maps, layer.kernel, layer.stride, padding=layer.padding)
    forward = conv_forward_kernel(arch, problem, bias, activation)
    return forward, ConvFilterGradient(arch, problem), conv_input_gradient_kernel(arch, problem)


def linear_layer_gemms(arch: str, layer: Linear, shape: Shape, bias: bool, activation: str) -> Products:
    """Return a fully connected layer's GEMMs for y, dw and dx. shape: of its input. activation: to fuse, or ""."""
    (k,), n = shape, layer.outputs
    forward, weights = Gemm(arch, bias=bias, activation=activation), Gemm(arch, transpose_a=True)
    inputs = Gemm(arch, transpose_b=True)
    return (
        lambda stream, images, x, w, b, y: forward(stream, (images, n, k), x, w, b, y),
        lambda stream, images, x, dy, dw: weights(stream, (k, n, images), x, dy, None, dw),
        lambda stream, images, dy, w, dx: inputs(stream, (images, k, n), dy, w, None, dx),
    )


def _epilogue_defines(bias: bool, activation: str) -> Defines:
    return {"HAS_BIAS": int(bias), "ACTIVATION": activation_name(activation)}
