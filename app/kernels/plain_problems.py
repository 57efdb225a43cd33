"""Define problems of kernels without parameters, and the type of a kernel's argument (see ``problems.py``)."""

from dataclasses import replace
from math import prod

from app.base.frozen import Frozen

DEFAULT_SLOPE = 0.01  # of a LeakyReLU below 0, as PyTorch's and ONNX's
ITEMSIZE = {"int8": 1, "uint8": 1, "float16": 2, "float32": 4, "float64": 8}


class Argument(Frozen):
    """A pointer argument of a kernel: its dtype and its number of elements (per image, or fixed)."""

    name: str
    dtype: str
    per_image: int = 0
    fixed: int = 0
    optional: bool = False


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
        """Return the FLOPs by convention: four products and three sums per output."""
        return 7 * self.channels * self.size**2

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (C, H, W), y (C, size, size)."""
        return input_output_arguments(
            self.dtype, self.channels * self.height * self.width, self.channels * self.size**2
        )


class ActivationProblem(Frozen):
    """Apply a function to ``size`` elements per image.

    function: relu, relu6, tanh, sigmoid, leakyrelu, or leakyrelu:SLOPE where it is not the default.
    """

    size: int
    function: str
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs by convention: one per element."""
        return self.size

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (size), y (size)."""
        return input_output_arguments(self.dtype, self.size, self.size)


class SoftmaxProblem(Frozen):
    """Compute softmax over ``classes`` values: exp(x - max x), divided by its sum."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs by convention: four per value (subtraction, exponential, sum, division)."""
        return 4 * self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (classes), y (classes)."""
        return input_output_arguments(self.dtype, self.classes, self.classes)


class ArgmaxProblem(Frozen):
    """Find the index of the greatest of ``classes`` values, the first among equals."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Return the FLOPs by convention: one comparison per value."""
        return self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (classes), labels (1)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("labels", "uint8", per_image=1)


def pooling_window_count(size: int, window: int, stride: int, ceil: bool, before: int = 0, behind: int = 0) -> int:
    """Return the number of pooling windows along an axis of ``size`` pixels, with padding at least ``window``.

    ceil: remaining pixels get a window that crosses the padding's end, if it begins before the image's. before, behind:
    pixels of padding.
    """
    padded = before + size + behind
    if ceil:
        return min(1 - (window - padded) // stride, -(-(before + size) // stride))
    return (padded - window) // stride + 1


class PoolProblem(Frozen):
    """Average or maximum pooling over window x window pixels, every ``stride`` pixels; see app/layers/pool.py."""

    channels: int
    height: int
    width: int
    window: int
    stride: int
    is_max: bool
    dtype: str = "float32"
    ceil: bool = False  # False where no window reaches beyond the padding
    padding: int = 0
    extra_padding: int = 0
    count_padding: bool = False

    def __post_init__(self) -> None:
        """Clear ``ceil`` if no window crosses the border, so that equal problems get equal kernels."""
        if self.ceil and self.pooled_size == replace(self, ceil=False).pooled_size:
            object.__setattr__(self, "ceil", False)

    @property
    def pooled_size(self) -> tuple[int, int]:
        """Return height and width of the output."""
        rule = self.window, self.stride, self.ceil, self.padding, self.padding + self.extra_padding
        height, width = (pooling_window_count(size, *rule) for size in (self.height, self.width))
        return height, width

    @property
    def counted_padding(self) -> int:
        """Rows, and columns, of padding that a mean counts, on both sides together."""
        return (2 * self.padding + self.extra_padding) * self.count_padding

    @property
    def flops(self) -> int:
        """Return the FLOPs by convention: one per pixel of each window."""
        return self.channels * prod(self.pooled_size) * self.window**2

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (C, H, W), y (C, PH, PW)."""
        return input_output_arguments(
            self.dtype, self.channels * self.height * self.width, self.channels * prod(self.pooled_size)
        )
