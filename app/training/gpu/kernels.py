"""Launches of training's kernels, except for the matrix products (products.py): constants, grids and arguments.

Each is called with a stream, device arrays and mostly the number of images, enqueues its work and returns at once.
"""

from typing import Any

import numpy as np

from app.cuda.memory import device_array
from app.kernels.launch import Function, training_kernel
from app.kernels.variant import BLOCK, activation_name, tiles
from app.layers import Shape
from app.layers.pool import Pool
from app.training.gpu.arena import Layout
from app.training.optimisers import AdamW, Optimiser, Sgd
from app.training.random_bits import thinning

TILE = 32  # rows and columns of a tile of the transpose; columns that a block sums
SUMMED = 512  # about how many values of one column a part of a column sum has
MOST_PARTS = 64


def sum_parts(images: int, pixels: int) -> int:
    """Into how many parts the sums over images and pixels are cut: a function of sizes alone, so results are, too."""
    wanted = tiles(images * pixels, SUMMED)
    return min(wanted, MOST_PARTS, images)


class Gather:
    """Gather images by index, as bytes or as float32 in [0, 1], optionally shifted and flipped at random."""

    def __init__(self, arch: str, shape: Shape, output: str, *, shift: int = 0, flip: bool = False) -> None:
        channels, height, width = shape
        constants: dict[str, str | int] = {"CHANNELS": channels, "H": height, "W": width, "OUTPUT": output}
        constants |= {"SHIFT": shift, "FLIP": int(flip)}
        self._function = training_kernel("gather", constants, arch, threads=BLOCK)

    def __call__(self, stream: Any, all_images: Any, items: Any, y: Any, images: int, key: np.uint64) -> None:
        """y[i] = image items[i]. items: int32; key: of the stream of random bits."""
        self._function(stream, (images, 1, 1), all_images, items, y, key)


class Scale:
    """Convert bytes to float32 in [0, 1]. size: bytes of an image."""

    def __init__(self, arch: str, size: int) -> None:
        self._size = size
        self._function = training_kernel("scale", {"SIZE": size}, arch, threads=BLOCK)

    def __call__(self, stream: Any, x: Any, y: Any, images: int) -> None:
        """y = x / 255."""
        self._function(stream, _one_each(images * self._size), x, y, np.int32(images))


class Dropout:
    """Multiply features by 0 or by 1 / (1 - share)."""

    def __init__(self, arch: str, features: int) -> None:
        self._features = features
        self._function = training_kernel("dropout", {"FEATURES": features}, arch, threads=BLOCK)

    def __call__(self, stream: Any, x: Any, y: Any, items: Any, images: int, key: np.uint64, share: float) -> None:
        """share: of the features that become 0; with 0, y is a copy of x. x and y may be one array."""
        least, factor = thinning(share)
        grid = _one_each(images * self._features)
        self._function(stream, grid, x, y, items, np.int32(images), key, np.int32(least), factor)


class ActivationGradient:
    """Turn dy into the gradient by the activation's input. size: activations of an image."""

    def __init__(self, arch: str, size: int, function: str) -> None:
        self._size = size
        constants: dict[str, str | int] = {"SIZE": size, "ACTIVATION": activation_name(function)}
        self._function = training_kernel("activation_gradient", constants, arch, threads=BLOCK)

    def __call__(self, stream: Any, y: Any, dy: Any, images: int) -> None:
        """dy ← dy · slope(y). y: the activation's output."""
        self._function(stream, _one_each(images * self._size), y, dy, np.int32(images))


class PoolGradient:
    """dx from dy; with ``function``, dx is the gradient by the input of the activation that computed x."""

    def __init__(self, arch: str, layer: Pool, shape: Shape, function: str) -> None:
        channels, height, width = shape
        self._size = channels * height * width
        constants: dict[str, str | int] = {"CHANNELS": channels, "H": height, "W": width, "WINDOW": layer.window}
        constants |= {"STRIDE": layer.step, "IS_MAX": int(layer.is_max)}
        constants |= {"ACTIVATION": activation_name(function)}
        self._function = training_kernel("pool_gradient", constants, arch, threads=BLOCK)

    def __call__(self, stream: Any, x: Any, y: Any, dy: Any, dx: Any, images: int) -> None:
        """Write dx. x, y: the layer's input and output."""
        self._function(stream, _one_each(images * self._size), x, y, dy, dx, np.int32(images))


class Transpose:
    """(images, rows, columns) → (images, columns, rows)."""

    def __init__(self, arch: str, rows: int, columns: int) -> None:
        self._tiles = tiles(rows, TILE) * tiles(columns, TILE)
        self._function = training_kernel("transpose", {"ROWS": rows, "COLUMNS": columns}, arch, threads=BLOCK)

    def __call__(self, stream: Any, x: Any, y: Any, images: int) -> None:
        """Write y, which must not overlap x."""
        self._function(stream, (images * self._tiles, 1, 1), x, y)


class ColumnSums:
    """Sum (images, columns, pixels) to (columns,). images: the most in a call."""

    def __init__(self, arch: str, images: int, columns: int, pixels: int = 1) -> None:
        self._columns, self._pixels = columns, pixels
        self._parts = device_array(sum_parts(images, pixels) * columns, "float32")
        self._function = self._compiled(arch, pixels)
        self._last = self._function if pixels == 1 else self._compiled(arch, 1)

    def _compiled(self, arch: str, pixels: int) -> Function:
        return training_kernel("column_sums", {"COLUMNS": self._columns, "PIXELS": pixels}, arch, threads=BLOCK)

    def __call__(self, stream: Any, x: Any, y: Any, images: int) -> None:
        """Write the sums to y, in one launch, or in two if there are several parts."""
        parts = sum_parts(images, self._pixels)
        groups = tiles(self._columns, TILE)
        blocks = groups if self._pixels == 1 else self._columns
        self._function(stream, (blocks, parts, 1), x, y if parts == 1 else self._parts, np.int32(images))
        if parts > 1:
            self._last(stream, (groups, 1, 1), self._parts, y, np.int32(parts))


class CrossEntropy:
    """Compute loss, correct answers and the loss's gradient by the logits."""

    def __init__(self, arch: str, classes: int) -> None:
        self._classes = classes
        self._function = training_kernel("cross_entropy", {"CLASSES": classes}, arch, threads=BLOCK)

    def __call__(
        self,
        stream: Any,
        logits: Any,
        labels: Any,
        items: Any,
        slope: Any,
        result: Any,
        images: int,
        *,
        total: int,
        smoothing: float,
    ) -> None:
        """Write the gradient ``slope`` and the (2,) float64 ``result``: loss / total, correct answers.

        labels: of all images, uint8; items: (images,) int32.
        """
        even = np.float32(smoothing / self._classes)
        own = np.float32(even + np.float32(1 - smoothing))
        self._function(
            stream, (1, 1, 1), logits, labels, items, slope, result, np.int32(images), np.int32(total), even, own
        )


class Update:
    """Compute ``add_l2`` and ``Optimiser.update`` on arenas: one launch for all parameters, one for the L2 penalty."""

    def __init__(self, arch: str, places: Layout, optimiser: Optimiser, l2: float) -> None:
        self._layout, self._optimiser, self._l2 = places, optimiser, l2
        self._blocks = tiles(places.size, BLOCK)
        name = {AdamW: "adamw", Sgd: "sgd"}[type(optimiser)]
        self._function = training_kernel(name, {"HAS_L2": int(l2 > 0)}, arch, threads=BLOCK)
        self._squares = device_array(self._blocks, "float64") if l2 else None
        self._penalty = training_kernel("penalty", {}, arch, threads=BLOCK) if l2 else None

    def __call__(
        self,
        stream: Any,
        parameters: Any,
        gradients: Any,
        slots: list[Any],
        penalty: Any,
        *,
        step: int,
        rate: float,
        momentum: float,
    ) -> None:
        """Make one step in place. penalty: (1,) float64, gets the L2 part of the loss, if any; step: counted from 1."""
        keep = 1 - rate * self._optimiser.weight_decay
        sizes = np.int32(self._layout.weights), np.int32(self._layout.size)
        scalars = self._scalars(step, rate, momentum)
        self._function(
            stream,
            (self._blocks, 1, 1),
            *(parameters, gradients, self._squares, *sizes, np.float32(self._l2), np.float32(keep)),
            *(*slots, *map(np.float32, scalars)),
        )
        if self._penalty is not None:
            half = np.float64(self._l2 / 2)
            self._penalty(stream, (1, 1, 1), self._squares, penalty, np.int32(self._blocks), half)

    def _scalars(self, step: int, rate: float, momentum: float) -> tuple[float, ...]:
        """The schedule's arguments of the kernel, computed in float64 as in the references."""
        if not isinstance(self._optimiser, AdamW):
            return momentum, rate
        beta2, epsilon = self._optimiser.beta2, self._optimiser.epsilon
        root_scale = (1 - beta2**step) ** 0.5
        return momentum, 1 - momentum, beta2, 1 - beta2, root_scale, epsilon, rate / (1 - momentum**step)


def _one_each(elements: int) -> tuple[int, int, int]:
    """A grid with one thread per element."""
    return tiles(elements, BLOCK), 1, 1
