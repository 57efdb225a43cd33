"""The matrix products of training on the GPU: fully connected layers, and convolutions with both their gradients.

All arrays are contiguous float32 on the device, as large as needed or larger, and aligned to 16 bytes. Activations are
(B, C, H, W), convolution filters (K, K, C, M). A call enqueues one or two launches and returns; sizes are not checked.
The order of a sum depends on the sizes of the call alone: results are bit-identical, on any card.
"""

from typing import Any

import numpy as np

from app.cuda.memory import device_array
from app.kernels.launch import Function, training_kernel
from app.kernels.variant import activation_name, tiles
from app.training.gpu.tiles import (
    GEMM_SLICE,
    GEMM_TILES,
    TYPICAL_IMAGES,
    ConvSizes,
    Tile,
    part_length,
    slice_depth,
    split,
    sum_groups,
    whole,
)

Array = Any  # cupy.ndarray
Defines = dict[str, str | int]
SUM_THREADS = 256


class Gemm:
    """y = activation(alpha · op(a) op(b) + beta · y + bias), row-major; long sums are cut into parts (split-K).

    alpha and beta exist because system 5's product has them; the engine leaves them 1 and 0. activation: "", "relu",
    "tanh" or "sigmoid".
    """

    def __init__(
        self,
        arch: str,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        bias: bool = False,
        activation: str = "",
    ) -> None:
        self._arch = arch
        self._defines = _epilogue(bias, activation)
        self._defines |= {"TRANSPOSE_A": int(transpose_a), "TRANSPOSE_B": int(transpose_b), "BK": GEMM_SLICE}
        self._products: dict[tuple[Tile, bool], Function] = {}
        self._parts = _Parts(arch, bias, activation)

    def __call__(
        self,
        stream: Any,
        a: Array,
        b: Array,
        y: Array,
        m: int,
        n: int,
        k: int,
        *,
        bias: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """a: (m, k), or (k, m) if transposed; b: (k, n), or (n, k); y: (m, n), not read if beta is 0; bias: (n,).

        m · n must stay below 2^31. The first call of a shape may compile and allocate.
        """
        choice = split(m, n, k, GEMM_TILES)
        cut = choice.parts > 1
        grid = (*choice.tile.blocks(m, n), choice.parts)
        length = part_length(k, choice.parts)
        out = self._parts.workspace(choice.parts * m * n) if cut else y
        sizes = (np.int32(m), np.int32(n), np.int32(k), np.int32(length))
        self._product(choice.tile, cut)(stream, grid, a, b, bias, out, *sizes, np.float32(alpha), np.float32(beta))
        if cut:
            self._parts.add(stream, out, y, m, n, choice.parts, bias=bias, alpha=alpha, beta=beta)

    def _product(self, tile: Tile, cut: bool) -> Function:
        """The kernel for a tile, compiled when it is first needed; cut: whether it writes parts of sums."""
        if (tile, cut) not in self._products:
            defines = self._defines | tile.defines | {"SPLIT": int(cut)}
            self._products[tile, cut] = training_kernel("gemm", defines, self._arch, threads=tile.threads)
        return self._products[tile, cut]


class ConvForward:
    """y (B, M, OH, OW) = activation(x (B, C, H, W) * w (K, K, C, M) + bias (M,))."""

    def __init__(self, arch: str, sizes: ConvSizes, *, bias: bool = False, activation: str = "") -> None:
        self._sizes = sizes
        self._tile = whole(sizes.maps, TYPICAL_IMAGES * sizes.pixels, sizes.taps)
        defines = sizes.defines | self._tile.defines | _epilogue(bias, activation)
        defines |= {"BK": slice_depth(sizes.channels, sizes.taps)}
        self._product = training_kernel("conv", defines, arch, threads=self._tile.threads)

    def __call__(self, stream: Any, x: Array, w: Array, y: Array, images: int, *, bias: Array | None = None) -> None:
        """Enqueue it for ``images`` images."""
        maps, pixels = self._tile.blocks(self._sizes.maps, images * self._sizes.pixels)
        self._product(stream, (pixels, maps, 1), x, w, bias, y, np.int32(images))


class ConvInputGradient:
    """dx (B, C, H, W) from dy (B, M, OH, OW) and w (K, K, C, M)."""

    def __init__(self, arch: str, sizes: ConvSizes) -> None:
        self._sizes = sizes
        terms = sizes.kernel**2 * sizes.maps
        self._tile = whole(sizes.channels, TYPICAL_IMAGES * sizes.height * sizes.width, terms)
        defines = sizes.defines | self._tile.defines | {"BK": slice_depth(sizes.maps, terms)}
        self._product = training_kernel("conv_input", defines, arch, threads=self._tile.threads)

    def __call__(self, stream: Any, dy: Array, w: Array, dx: Array, images: int) -> None:
        """Enqueue it for ``images`` images."""
        sizes = self._sizes
        channels, pixels = self._tile.blocks(sizes.channels, images * sizes.height * sizes.width)
        self._product(stream, (pixels, channels, 1), dy, w, dx, np.int32(images))


class ConvFilterGradient:
    """dw (K, K, C, M) from x (B, C, H, W) and dy (B, M, OH, OW). Its sums are always cut into the same parts."""

    def __init__(self, arch: str, sizes: ConvSizes) -> None:
        self._sizes = sizes
        self._split = split(sizes.taps, sizes.maps, TYPICAL_IMAGES * sizes.pixels)
        tile = self._split.tile
        defines = sizes.defines | tile.defines | {"BK": GEMM_SLICE}
        self._product = training_kernel("conv_filters", defines, arch, threads=tile.threads)
        self._parts = _Parts(arch, False, "")

    def __call__(self, stream: Any, x: Array, dy: Array, dw: Array, images: int) -> None:
        """Enqueue it, summed over ``images`` images."""
        sizes, parts = self._sizes, self._split.parts
        space = self._parts.workspace(parts * sizes.taps * sizes.maps)
        grid = (*self._split.tile.blocks(sizes.taps, sizes.maps), parts)
        length = part_length(images * sizes.pixels, parts)
        self._product(stream, grid, x, dy, space, np.int32(images), np.int32(length))
        self._parts.add(stream, space, dw, sizes.taps, sizes.maps, parts)


class _Parts:
    """Memory for the parts of a product, (parts, rows, columns), and the launch that adds them up."""

    def __init__(self, arch: str, bias: bool, activation: str) -> None:
        self._arch, self._defines = arch, _epilogue(bias, activation) | {"THREADS": SUM_THREADS}
        self._sums: dict[int, Function] = {}
        self._space: Array | None = None

    def workspace(self, elements: int) -> Array:
        """At least ``elements`` float32, kept from call to call."""
        if self._space is None or self._space.size < elements:
            self._space = device_array(elements, "float32")
        return self._space

    def add(
        self,
        stream: Any,
        parts: Array,
        y: Array,
        rows: int,
        columns: int,
        count: int,
        *,
        bias: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue y (rows, columns) = activation(alpha · Σ parts + beta · y + bias). count: of parts."""
        groups = sum_groups(count)
        if groups not in self._sums:
            defines = self._defines | {"GROUPS": groups}
            self._sums[groups] = training_kernel("sum_parts", defines, self._arch, threads=SUM_THREADS)
        grid = (tiles(rows * columns, SUM_THREADS // groups), 1, 1)
        sizes = (np.int32(rows * columns), np.int32(columns), np.int32(count))
        self._sums[groups](stream, grid, parts, bias, y, *sizes, np.float32(alpha), np.float32(beta))


def _epilogue(bias: bool, activation: str) -> Defines:
    return {"HAS_BIAS": int(bias), "ACTIVATION": activation_name(activation)}
