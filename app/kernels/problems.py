"""What a kernel is asked to do: one frozen record per operation, and the arguments its kernels take.

All sizes are per image. ``dtype`` is the type of the arithmetic, ``input_dtype`` that of the first argument.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One pointer argument: its dtype and how many elements it must hold (per image, or in all)."""

    name: str
    dtype: str
    per_image: int = 0
    fixed: int = 0
    optional: bool = False


@dataclass(frozen=True)
class ConvProblem:
    """Convolution (cross-correlation, no padding), then bias, ReLU and pooling where asked for."""

    channels: int
    height: int
    width: int
    maps: int
    kernel: int
    stride: int = 1
    bias: bool = False
    relu: bool = False
    pool: int = 1  # window and stride; 1: no pooling
    pool_is_max: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"

    @property
    def sizes(self) -> tuple[int, ...]:
        """C, H, W, M, K, S."""
        return self.channels, self.height, self.width, self.maps, self.kernel, self.stride

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width before pooling."""
        return (self.height - self.kernel) // self.stride + 1, (self.width - self.kernel) // self.stride + 1

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output."""
        height, width = self.convolved
        return height // self.pool, width // self.pool

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), w (C, K, K, M), bias (M), y (M, PH, PW)."""
        height, width = self.pooled
        return (
            Argument("x", self.input_dtype, per_image=self.channels * self.height * self.width),
            Argument("w", self.dtype, fixed=self.channels * self.kernel**2 * self.maps),
            Argument("bias", self.dtype, fixed=self.maps, optional=not self.bias),
            Argument("y", self.dtype, per_image=self.maps * height * width),
        )


@dataclass(frozen=True)
class LinearProblem:
    """Matrix product with (inputs, outputs) weights, then bias, ReLU and argmax where asked for."""

    inputs: int
    outputs: int
    bias: bool = False
    relu: bool = False
    argmax: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"

    def arguments(self) -> tuple[Argument, ...]:
        """x (inputs), w (inputs, outputs), bias (outputs), y (outputs) and, with argmax, one label."""
        arguments = (
            Argument("x", self.input_dtype, per_image=self.inputs),
            Argument("w", self.dtype, fixed=self.inputs * self.outputs),
            Argument("bias", self.dtype, fixed=self.outputs, optional=not self.bias),
            Argument("y", self.dtype, per_image=self.outputs),
        )
        return (*arguments, Argument("labels", "uint8", per_image=1)) if self.argmax else arguments


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

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), y (C, PH, PW)."""
        height, width = self.pooled
        return (
            Argument("x", self.dtype, per_image=self.channels * self.height * self.width),
            Argument("y", self.dtype, per_image=self.channels * height * width),
        )


@dataclass(frozen=True)
class ReluProblem:
    """max(x, 0) of ``size`` elements an image."""

    size: int
    dtype: str = "float32"

    def arguments(self) -> tuple[Argument, ...]:
        """x (size), y (size)."""
        return Argument("x", self.dtype, per_image=self.size), Argument("y", self.dtype, per_image=self.size)


@dataclass(frozen=True)
class ArgmaxProblem:
    """The index of the greatest of ``classes`` values, the first among equals."""

    classes: int
    dtype: str = "float32"

    def arguments(self) -> tuple[Argument, ...]:
        """x (classes), labels (1)."""
        return Argument("x", self.dtype, per_image=self.classes), Argument("labels", "uint8", per_image=1)


Problem = ConvProblem | LinearProblem | PoolProblem | ReluProblem | ArgmaxProblem


def bytes_moved(problem: Problem, images: int) -> int:
    """The least that must cross device memory for ``images`` images: every argument read or written once."""
    itemsize = {"uint8": 1, "float32": 4, "float64": 8}
    return sum(
        (argument.fixed + argument.per_image * images) * itemsize[argument.dtype]
        for argument in problem.arguments()
        if not argument.optional
    )
