"""Lay parameters out in arenas, and launch the kernels of training, except for the matrix products (products.py).

An arena is a device array of all parameters, weights first; gradients and the optimiser's state have such arenas, too.
A launcher takes a stream, usually the number of images, and device arrays; it enqueues its work and returns at once.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.cuda.compiler import compile_kernel
from app.cuda.memory import device_array
from app.kernels.function import KernelFunction
from app.kernels.launch import load_cubin
from app.kernels.train.train import FOLDER
from app.kernels.variant import BLOCK, activation_name, ceil_div
from app.layers import Shape
from app.layers.pool import Pool
from app.training.gradients import Arrays
from app.training.model import TEACHING, TEMPERATURE
from app.training.optimisers import AdamW, Optimiser, ScheduleStep, Sgd
from app.training.random_bits import dropout_threshold_and_factor

ALIGNMENT = 4  # float32 elements: kernels load four at a time


class ArenaLayout(Frozen):
    """The layout of an arena, an array of all parameters, in elements.

    slices: parameter → slice of its elements. weights: end of the weights, where biases begin. size: length of the
    arena. Up to three padding elements between parameters are always 0.
    """

    shapes: Mapping[str, Shape]
    slices: Mapping[str, slice]
    weights: int
    size: int

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Pack the arrays into a host array, (size,) float32."""
        flat = np.zeros(self.size, np.float32)
        for name, place in self.slices.items():
            flat[place] = arrays[name].ravel()
        return flat

    def unpack(self, flat: np.ndarray) -> Arrays:
        """Return copies of the arrays in ``flat``, a host copy of an arena, by name, in the order of the shapes."""
        return {name: flat[self.slices[name]].reshape(shape).copy() for name, shape in self.shapes.items()}

    def view(self, arena: Any, name: str) -> Any:
        """Return a flat view of a parameter in an arena; None if the parameter does not exist."""
        return arena[self.slices[name]] if name in self.slices else None


def arena_layout(shapes: Mapping[str, Shape]) -> ArenaLayout:
    """Return the layout of an arena for parameters of these shapes."""
    slices: dict[str, slice] = {}
    at = weights = 0
    for name in sorted(shapes, key=lambda name: name.endswith("_bias")):  # a stable sort
        size = prod(shapes[name])
        slices[name] = slice(at, at + size)
        at += -(-size // ALIGNMENT) * ALIGNMENT
        if not name.endswith("_bias"):
            weights = at
    return ArenaLayout(shapes, slices, weights, at)


TILE = 32  # rows and columns of a transpose's tile; columns per block of the sums
SUMMED = 512  # approximate number of values per part of a column sum
MOST_PARTS = 64


def training_kernel(name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> KernelFunction:
    """Return the kernel of train/train_NAME.cu for these constants. Raises the errors of ``compile_kernel``."""
    module = load_cubin(compile_kernel(FOLDER / f"train_{name}.cu", dict(defines), arch))
    return KernelFunction(module, f"train_{name}", threads=threads)


def partial_sum_count(images: int, pixels: int) -> int:
    """Return how many partial sums form a sum over images and pixels: fixed by these sizes, so results are, too."""
    wanted = ceil_div(images * pixels, SUMMED)
    return min(wanted, MOST_PARTS, images)


class GatherImages:
    """Gathers images by index, as bytes or as float32 times ``factor``, optionally shifted and flipped."""

    def __init__(
        self, arch: str, shape: Shape, output: str, factor: float, *, shift: int = 0, flip: bool = False
    ) -> None:
        random = {"SHIFT": shift, "FLIP": int(flip)}
        self._function = _load_kernel(
            "gather", arch, **_image_defines(shape), OUTPUT=output, SCALE=repr(factor), **random
        )

    def __call__(self, stream: Any, images: int, all_images: Any, items: Any, y: Any, key: np.uint64) -> None:
        """Enqueue y[i] = all_images[items[i]], i < images. items: int32. key: of the random shifts and flips."""
        self._function(stream, (images, 1, 1), all_images, items, y, key)


class ElementwiseKernel:
    """Runs a kernel with one thread per element. size: elements per image."""

    def __init__(self, name: str, arch: str, size: int, **constants: str | int) -> None:
        self._size = size
        self._function = _load_kernel(name, arch, **constants)

    def __call__(self, stream: Any, images: int, *arrays: Any, scalars: tuple[Any, ...] = ()) -> None:
        """Enqueue the kernel on its arrays for ``images`` images. scalars: arguments after ``images``."""
        grid = (ceil_div(images * self._size, BLOCK), 1, 1)
        self._function(stream, grid, *arrays, np.int32(images), *scalars)


def scale_kernel(arch: str, size: int, factor: float) -> ElementwiseKernel:
    """Return the kernel for (x, y): y = x · factor, from bytes to float32."""
    return ElementwiseKernel("scale", arch, size, SIZE=size, SCALE=repr(factor))


def activation_gradient_kernel(arch: str, size: int, function: str) -> ElementwiseKernel:
    """Return the kernel for (y, dy): dy ← dy · slope(y), the gradient of an activation with output y."""
    return ElementwiseKernel("activation_gradient", arch, size, SIZE=size, ACTIVATION=activation_name(function))


def pool_gradient_kernel(arch: str, layer: Pool, shape: Shape, function: str) -> ElementwiseKernel:
    """Return the kernel for (x, y, dy, dx) that computes dx from dy. x, y: input and output of the layer.

    With ``function``, dx is the gradient with respect to the input of the activation before the pooling.
    """
    problem = layer.standalone_problem(shape, "float32", "float32")
    assert problem is not None
    height, width = problem.pooled_size
    window = {
        "WINDOW": layer.window,
        "STRIDE": layer.effective_stride,
        "IS_MAX": int(layer.is_max),
        "PADDING": layer.padding,
        "COUNTED": problem.counted_padding,
        "PH": height,
        "PW": width,
    }
    activation = activation_name(function)
    return ElementwiseKernel(
        "pool_gradient", arch, prod(shape), **_image_defines(shape), **window, ACTIVATION=activation
    )


class Dropout:
    """Zeroes a random share of the features and multiplies the others by 1 / (1 - share)."""

    def __init__(self, arch: str, features: int) -> None:
        self._function = ElementwiseKernel("dropout", arch, features, FEATURES=features)

    def __call__(self, stream: Any, images: int, x: Any, y: Any, items: Any, key: np.uint64, share: float) -> None:
        """Enqueue y = x, a random ``share`` of features zeroed, others scaled; y may be x. items, key: choose them."""
        least, factor = dropout_threshold_and_factor(share)
        self._function(stream, images, x, y, items, scalars=(key, np.int32(least), factor))


class Transpose:
    """Transposes (images, rows, columns) to (images, columns, rows)."""

    def __init__(self, arch: str, rows: int, columns: int) -> None:
        self._tiles = ceil_div(rows, TILE) * ceil_div(columns, TILE)
        self._function = _load_kernel("transpose", arch, ROWS=rows, COLUMNS=columns)

    def __call__(self, stream: Any, images: int, x: Any, y: Any) -> None:
        """Enqueue y = x with each image transposed. y must not overlap x."""
        self._function(stream, (images * self._tiles, 1, 1), x, y)


class ColumnSums:
    """Sums over images and pixels, (images, columns, pixels) → (columns,). images: most images per call."""

    def __init__(self, arch: str, images: int, columns: int, pixels: int = 1) -> None:
        self._columns, self._pixels = columns, pixels
        self._parts = device_array(partial_sum_count(images, pixels) * columns, "float32")
        self._function = _load_kernel("column_sums", arch, COLUMNS=columns, PIXELS=pixels)
        self._last = self._function if pixels == 1 else _load_kernel("column_sums", arch, COLUMNS=columns, PIXELS=1)

    def __call__(self, stream: Any, images: int, x: Any, y: Any) -> None:
        """Enqueue y = sums of the columns of x: one launch, or two if each sum is computed in several parts."""
        parts = partial_sum_count(images, self._pixels)
        groups = ceil_div(self._columns, TILE)
        blocks = groups if self._pixels == 1 else self._columns
        self._function(stream, (blocks, parts, 1), x, y if parts == 1 else self._parts, np.int32(images))
        if parts > 1:
            self._last(stream, (groups, 1, 1), self._parts, y, np.int32(parts))


class CrossEntropy:
    """Computes the cross-entropy loss, the number of correct answers, and the gradient with respect to the logits."""

    def __init__(self, arch: str, classes: int) -> None:
        self._classes = classes
        self._function = _load_kernel("cross_entropy", arch, CLASSES=classes)

    def __call__(self, stream: Any, images: int, *arrays: Any, total: int, smoothing: float) -> None:
        """Enqueue the kernel on the arrays logits, teacher, labels, items, slope and result.

        teacher: its logits, or None. labels: of all images, uint8. items: (images,) int32 indices. slope: receives
        the gradient. result: (2,) float64, receives loss / total and the number of correct answers.
        """
        even = np.float32(smoothing / self._classes)
        own = np.float32(even + np.float32(1 - smoothing))
        scalars = even, own, *map(np.float32, (TEACHING, TEMPERATURE))
        self._function(stream, (1, 1, 1), *arrays, np.int32(images), np.int32(total), *scalars)


class ParameterUpdate:
    """Runs ``add_l2_gradient`` and ``Optimiser.update`` on the GPU: one launch for the L2 loss, one for the update."""

    def __init__(self, arch: str, layout: ArenaLayout, optimiser: Optimiser, l2: float) -> None:
        self._layout, self._optimiser, self._l2 = layout, optimiser, l2
        self._blocks = ceil_div(layout.size, BLOCK)
        name = {AdamW: "adamw", Sgd: "sgd"}[type(optimiser)]
        self._function = _load_kernel(name, arch, HAS_L2=int(l2 > 0), KEEP_ZEROS=int(optimiser.keep_zeros))
        self._squares = device_array(self._blocks, "float64") if l2 else None
        self._penalty = _load_kernel("penalty", arch) if l2 else None

    def __call__(
        self, stream: Any, parameters: Any, gradients: Any, slots: list[Any], penalty: Any, step: ScheduleStep
    ) -> None:
        """Enqueue the update of parameters and slots in place. penalty: (1,) float64, receives the L2 loss, if any."""
        keep = 1 - step.rate * self._optimiser.weight_decay
        arrays = parameters, gradients, self._squares
        sizes = np.int32(self._layout.weights), np.int32(self._layout.size)
        scalars = map(np.float32, self._kernel_scalars(step))
        grid = (self._blocks, 1, 1)
        self._function(stream, grid, *arrays, *sizes, np.float32(self._l2), np.float32(keep), *slots, *scalars)
        if self._penalty is not None:
            half = np.float64(self._l2 / 2)
            self._penalty(stream, (1, 1, 1), self._squares, penalty, np.int32(self._blocks), half)

    def _kernel_scalars(self, step: ScheduleStep) -> tuple[float, ...]:
        """Return the arguments of the kernel for a step of the schedule, computed in float64 as in the references."""
        number, rate, momentum = step
        if not isinstance(self._optimiser, AdamW):
            return momentum, rate
        beta2, epsilon = self._optimiser.beta2, self._optimiser.epsilon
        root_scale = (1 - beta2**number) ** 0.5
        return momentum, 1 - momentum, beta2, 1 - beta2, root_scale, epsilon, rate / (1 - momentum**number)


def _load_kernel(name: str, arch: str, **constants: str | int) -> KernelFunction:
    return training_kernel(name, constants, arch, threads=BLOCK)


def _image_defines(shape: Shape) -> dict[str, int]:
    return dict(zip(("CHANNELS", "H", "W"), shape, strict=True))
