"""What a kernel without parameters is asked to do: one frozen record per operation. All sizes are per image."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from app.kernels.argument import Argument


@dataclass(frozen=True)
class PoolProblem:
    """Average or maximum over window x window pixels, every ``stride`` pixels."""

    channels: int
    height: int
    width: int
    window: int
    stride: int
    is_max: bool
    dtype: str = "float32"

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output."""
        return (self.height - self.window) // self.stride + 1, (self.width - self.window) // self.stride + 1

    @property
    def flops(self) -> int:
        """One for each element of each window."""
        return self.channels * prod(self.pooled) * self.window**2

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), y (C, PH, PW)."""
        return (
            Argument("x", self.dtype, per_image=self.channels * self.height * self.width),
            Argument("y", self.dtype, per_image=self.channels * prod(self.pooled)),
        )


@dataclass(frozen=True)
class ResizeProblem:
    """Bytes, interpolated between the four nearest pixels, to ``size`` x ``size``: see ``app/layers/resize.py``."""

    channels: int
    height: int
    width: int
    size: int
    dtype: str = "uint8"

    @property
    def flops(self) -> int:
        """Four products and three sums for each output, as a convention."""
        return 7 * self.channels * self.size**2

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), y (C, size, size)."""
        return (
            Argument("x", self.dtype, per_image=self.channels * self.height * self.width),
            Argument("y", self.dtype, per_image=self.channels * self.size**2),
        )


@dataclass(frozen=True)
class ActivationProblem:
    """A function (relu, tanh or sigmoid) of each of ``size`` elements an image."""

    size: int
    function: str
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """One for each element, as a convention."""
        return self.size

    def arguments(self) -> tuple[Argument, ...]:
        """x (size), y (size)."""
        return Argument("x", self.dtype, per_image=self.size), Argument("y", self.dtype, per_image=self.size)


@dataclass(frozen=True)
class SoftmaxProblem:
    """exp(x - max x), divided by its sum over ``classes`` values."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Subtraction, exponential, sum, division; as a convention."""
        return 4 * self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """x (classes), y (classes)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("y", self.dtype, per_image=self.classes)


@dataclass(frozen=True)
class ArgmaxProblem:
    """The index of the greatest of ``classes`` values, the first among equals."""

    classes: int
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        """One comparison a value."""
        return self.classes

    def arguments(self) -> tuple[Argument, ...]:
        """x (classes), labels (1)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("labels", "uint8", per_image=1)
