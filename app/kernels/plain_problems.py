"""The requests to kernels without parameters, and the arguments of all kernels; see ``problems.py``."""

from dataclasses import dataclass

ITEMSIZE = {"int8": 1, "uint8": 1, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Argument:
    """One pointer argument: its dtype and how many elements it must hold (per image, or in all)."""

    name: str
    dtype: str
    per_image: int = 0
    fixed: int = 0
    optional: bool = False


def x_and_y(dtype: str, read: int, written: int) -> tuple[Argument, ...]:
    """Return the arguments of a kernel without parameters: elements that it reads and writes per image."""
    return Argument("x", dtype, per_image=read), Argument("y", dtype, per_image=written)


@dataclass(frozen=True)
class ResizeProblem:
    """Bytes, interpolated between the four nearest pixels, to ``size`` x ``size``: see ``app/layers/resize.py``."""

    channels: int
    height: int
    width: int
    size: int
    rule: str = "edge"  # or "course"
    dtype: str = "uint8"

    @property
    def flops(self) -> int:
        """Four products and three sums for each output, by convention."""
        return 7 * self.channels * self.size**2

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (C, H, W), y (C, size, size)."""
        return x_and_y(self.dtype, self.channels * self.height * self.width, self.channels * self.size**2)


@dataclass(frozen=True)
class ActivationProblem:
    """A function (relu, tanh or sigmoid) of each of ``size`` elements per image."""

    size: int
    function: str
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """One operation for each element, by convention."""
        return self.size

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (size), y (size)."""
        return x_and_y(self.dtype, self.size, self.size)


@dataclass(frozen=True)
class SoftmaxProblem:
    """exp(x - max x), divided by its sum over ``classes`` values."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Four operations per value, by convention: subtraction, exponential, sum, division."""
        return 4 * self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (classes), y (classes)."""
        return x_and_y(self.dtype, self.classes, self.classes)


@dataclass(frozen=True)
class ArgmaxProblem:
    """The index of the greatest of ``classes`` values, the first among equals."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """One comparison per value."""
        return self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """Return x (classes), labels (1)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("labels", "uint8", per_image=1)
