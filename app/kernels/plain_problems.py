"""Define problems of kernels without parameters, and the type of a kernel's argument (see ``problems.py``)."""

from collections.abc import Iterable

import numpy as np

from app.base.frozen import Frozen

DEFAULT_SLOPE = 0.01  # of a LeakyReLU below 0, as PyTorch's and ONNX's
ITEMSIZE = {"int8": 1, "uint8": 1, "float16": 2, "float32": 4, "float64": 8}


class Argument(Frozen):
    """A pointer argument of a kernel: dtype, elements per image or in all (fixed), and whether it may be null."""

    name: str
    dtype: str
    per_image: int = 0
    fixed: int = 0
    optional: bool = False


def bytes_moved(arguments: Iterable[Argument], images: int) -> int:
    """Return the least traffic of device memory in bytes for ``images`` images: every required argument once."""
    return sum(
        (argument.fixed + argument.per_image * images) * ITEMSIZE[argument.dtype]
        for argument in arguments
        if not argument.optional
    )


def max_workspace_images(arguments: tuple[Argument, ...], budget: int = 256 << 20) -> int:
    """Return the largest number of images, at least one, whose workspace arrays fit in ``budget`` bytes."""
    per_image = sum(argument.per_image * ITEMSIZE[argument.dtype] for argument in arguments)
    return max(budget // max(per_image, 1), 1)


def input_output_arguments(dtype: str, read: int, written: int) -> tuple[Argument, ...]:
    """Return the arguments x and y of a kernel without parameters. read, written: elements per image of x and y."""
    return Argument("x", dtype, per_image=read), Argument("y", dtype, per_image=written)


class ResizeProblem(Frozen):
    """Resize bytes to ``size`` x ``size`` by bilinear interpolation (see ``app/layers/resize.py``)."""

    channels: int
    height: int
    width: int
    size: int
    rule: str = "edge"  # or "course"
    dtype: str = "uint8"

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image by convention: four products and three sums per output."""
        return 7 * self.channels * self.size**2

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (C, H, W) and y (C, size, size)."""
        return input_output_arguments(
            self.dtype, self.channels * self.height * self.width, self.channels * self.size**2
        )


class ActivationProblem(Frozen):
    """Apply a function to ``size`` elements per image.

    function: relu, relu6, tanh, sigmoid, leakyrelu, or leakyrelu:SLOPE if the slope is not the default.
    """

    size: int
    function: str
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image by convention: one per element."""
        return self.size

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (size) and y (size)."""
        return input_output_arguments(self.dtype, self.size, self.size)


class SoftmaxProblem(Frozen):
    """Compute softmax over ``classes`` values: exp(x - max x), divided by its sum."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image by convention: four per value (subtraction, exponential, sum, division)."""
        return 4 * self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (classes) and y (classes)."""
        return input_output_arguments(self.dtype, self.classes, self.classes)


class ArgmaxProblem(Frozen):
    """Find the index of the greatest of ``classes`` values; of equal ones, the first."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image by convention: one comparison per value."""
        return self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (classes) and labels (1)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("labels", "uint8", per_image=1)


# 2:4 sparsity, of a convolution's filters: at most KEPT of each GROUP of input maps, 4i to 4i + 3, have a weight at one
# pixel of one filter. Hopper's sparse tensor-core products skip the zeros, at twice the rate.
GROUP, KEPT = 4, 2


def is_two_of_four(filters: np.ndarray) -> bool:
    """Return whether an array is 2:4 sparse filters (K, K, in, out); False unless ``in`` is a multiple of 4.

    2:4: at each pixel of each filter, at most two of the input maps 4i to 4i + 3 have a nonzero weight, for every i.
    """
    if filters.ndim != 4 or filters.shape[2] % GROUP:
        return False
    groups = filters.reshape(-1, GROUP, filters.shape[3])
    return bool((np.count_nonzero(groups, axis=1) <= KEPT).all())
