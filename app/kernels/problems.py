"""Define the problems that kernels solve: one frozen record per operation, with the arguments of its kernels.

All sizes are per image. ``input_dtype`` and ``output_dtype`` are types of activations in memory, ``dtype`` is that of
the multiplication: ``float64``, ``float32``, ``float16x2`` (as exact as float32: the sum of two float16 or two
tfloat32), ``tfloat32`` (float32 rounded to 11 bits), ``float16`` or ``int8`` (see ``ConvPairProblem``). Biases are
added and activations computed in float32 (float64 for float64).
"""

from dataclasses import fields, replace
from math import prod
from typing import Generic, TypeVar

from app.base.frozen import Frozen
from app.base.precision import epilogue_dtype, storage_dtype
from app.kernels.plain_problems import (
    ActivationProblem,
    ArgmaxProblem,
    Argument,
    ResizeProblem,
    SoftmaxProblem,
    input_output_arguments,
)

LONG_SUM = 4096  # sums of so many terms are divided among blocks; one warp would take 18 us for them


def pooling_window_count(size: int, window: int, stride: int, ceil: bool, before: int = 0, behind: int = 0) -> int:
    """Return the number of pooling windows along an axis of ``size`` pixels plus padding, at least ``window`` in all.

    ceil: one more window may end beyond the padding, if it begins inside the image. before, behind: pixels of padding.
    """
    padded = before + size + behind
    if ceil:
        return min(1 - (window - padded) // stride, -(-(before + size) // stride))
    return (padded - window) // stride + 1


class ConvProblem(Frozen):
    """A convolution (cross-correlation, zeros around the image), then optionally bias, activation and pooling.

    activation: as in ActivationProblem, "" for none. pool: window and stride, 1 for none. pool_ceil: windows may cross
    the border. sparse: weights are 2:4 sparse. In float16x2, bounded: numbers fit float16; exact: weights are float16.
    """

    channels: int
    height: int
    width: int
    maps: int
    kernel: int
    stride: int = 1
    bias: bool = False
    activation: str = ""
    pool: int = 1
    pool_is_max: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"
    output_dtype: str = "float32"
    padding: int = 0
    pool_ceil: bool = False
    bounded: bool = False
    exact: bool = False
    sparse: bool = False

    def __post_init__(self) -> None:
        """Clear ``pool_ceil`` if no window crosses the border, so that equal problems get equal kernels."""
        if self.pool_ceil and self.pooled_size == replace(self, pool_ceil=False).pooled_size:
            object.__setattr__(self, "pool_ceil", False)

    @property
    def activation_parts(self) -> int:
        """Return how many numbers add up to one input: two in float16x2, unless inputs are bytes, else one."""
        return 2 if self.dtype == "float16x2" and self.input_dtype != "uint8" else 1

    @property
    def weight_parts(self) -> int:
        """Return how many numbers add up to one weight: two in float16x2, unless weights are exact, else one."""
        return 2 if self.dtype == "float16x2" and not self.exact else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return (C, H, W, M, K, S): channels, height and width of the input, maps, filter size, stride."""
        return self.channels, self.height, self.width, self.maps, self.kernel, self.stride

    @property
    def reduction_length(self) -> int:
        """Return the number of products per sum: C * K * K."""
        return self.channels * self.kernel**2

    @property
    def conv_output_size(self) -> tuple[int, int]:
        """Return height and width before pooling."""
        beyond = 2 * self.padding - self.kernel
        return (self.height + beyond) // self.stride + 1, (self.width + beyond) // self.stride + 1

    @property
    def pooled_size(self) -> tuple[int, int]:
        """Return height and width of the output, after pooling."""
        counts = [pooling_window_count(size, self.pool, self.pool, self.pool_ceil) for size in self.conv_output_size]
        return counts[0], counts[1]

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image for the convolution, without bias, activation and pooling: two per product."""
        return 2 * self.maps * prod(self.conv_output_size) * self.reduction_length

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (C, H, W), w (C, K, K, M), bias (M) and y (M, PH, PW), after pooling."""
        return (
            Argument("x", self.input_dtype, per_image=self.channels * self.height * self.width),
            Argument("w", storage_dtype(self.dtype), fixed=self.reduction_length * self.maps),
            Argument("bias", epilogue_dtype(self.dtype), fixed=self.maps, optional=not self.bias),
            Argument("y", self.output_dtype, per_image=self.maps * prod(self.pooled_size)),
        )


class PoolProblem(Frozen):
    """Average or maximum pooling over window x window pixels, every ``stride`` pixels; fields: app/layers/pool.py."""

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
        """Return how many rows of padding, above and below together, a mean counts as pixels, and as many columns."""
        return (2 * self.padding + self.extra_padding) * self.count_padding

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image by convention: one per pixel of each window."""
        return self.channels * prod(self.pooled_size) * self.window**2

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (C, H, W) and y (C, PH, PW)."""
        return input_output_arguments(
            self.dtype, self.channels * self.height * self.width, self.channels * prod(self.pooled_size)
        )


class LinearProblem(Frozen):
    """A fully connected layer. In float16x2, exact: weights are float16; unbounded: numbers may exceed its range."""

    inputs: int
    outputs: int
    bias: bool = False
    activation: str = ""
    argmax: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"
    output_dtype: str = "float32"
    exact: bool = False
    softmax: bool = False  # y holds probabilities
    unbounded: bool = False

    @property
    def activation_parts(self) -> int:
        """Return how many float16 add up to one input; 1 for bytes and other types."""
        return 2 if self.dtype == "float16x2" and self.input_dtype != "uint8" else 1

    @property
    def weight_parts(self) -> int:
        """Return how many float16 add up to one weight; 1 for other types."""
        return 2 if self.dtype == "float16x2" and not self.exact else 1

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image for the matrix product, without bias and activation: two per weight."""
        return 2 * self.inputs * self.outputs

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments x (inputs), w (inputs, outputs), bias (outputs), y (outputs); with argmax, labels."""
        arguments = (
            Argument("x", self.input_dtype, per_image=self.inputs),
            Argument("w", storage_dtype(self.dtype), fixed=self.inputs * self.outputs),
            Argument("bias", epilogue_dtype(self.dtype), fixed=self.outputs, optional=not self.bias),
            Argument("y", self.output_dtype, per_image=self.outputs),
        )
        return (*arguments, Argument("labels", "uint8", per_image=1)) if self.argmax else arguments


Half = TypeVar("Half", bound=ConvProblem | LinearProblem)


class _PairProblem(Frozen, Generic[Half]):
    """Two layers of one kind; the second reads the first's results. exact: in float16x2, float16 holds the weights."""

    first: Half
    second: Half
    exact: bool = False

    @property
    def dtype(self) -> str:
        """Return the type of the products in both layers."""
        return self.first.dtype

    @property
    def activation_parts(self) -> int:
        """Return how many float16 add up to one activation."""
        return 2 if self.dtype == "float16x2" else 1

    @property
    def weight_parts(self) -> int:
        """Return how many float16 add up to one weight."""
        return 2 if self.dtype == "float16x2" and not self.exact else 1

    @property
    def flops(self) -> int:
        """Return the FLOPs of an image for the products of both layers."""
        return self.first.flops + self.second.flops

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments: the first layer's x; w1, bias1, w2, bias2 in float32; the second layer's results."""
        x, w1, bias1, *_ = self.first.arguments()
        _, w2, bias2, *results = self.second.arguments()
        parameters = {"w1": w1, "bias1": bias1, "w2": w2, "bias2": bias2}
        return x, *(replace(given, name=name, dtype="float32") for name, given in parameters.items()), *results


class ConvPairProblem(_PairProblem[ConvProblem]):
    """Two convolutions: x (C, H, W), w1 (C, K, K, M), bias1 (M), w2, bias2, y (M, PH, PW).

    pixel_scale: factor of the pixels that w1 does not include if the weights are exact. resize: resizing of x before
    the convolutions, or None. In int8, the first convolution multiplies in float16. Its pooled results become bytes; 1
    and above become 255. The second convolution multiplies the bytes by integers from -127 to 127, in units of 1/127 of
    the greatest weight of a map. sparse: whether w2 is 2:4 sparse along its input maps (see plain_problems.py).
    """

    pixel_scale: float = 1.0
    resize: ResizeProblem | None = None
    sparse: bool = False

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments of a kernel for both layers; if it also resizes, x has the images before resizing."""
        x, *others = super().arguments()
        return (x if self.resize is None else self.resize.arguments()[0]), *others


class LinearPairProblem(_PairProblem[LinearProblem]):
    """Two matrix products: x (inputs), w1 (inputs, outputs), bias1 (outputs), w2, bias2, y (outputs), labels (1)."""

    @property
    def activation_parts(self) -> int:
        """Return how many float16 add up to one input."""
        return self.first.activation_parts


PairProblem = ConvPairProblem | LinearPairProblem
PlainProblem = PoolProblem | ResizeProblem | ActivationProblem | SoftmaxProblem | ArgmaxProblem  # no parameters
Problem = ConvProblem | LinearProblem | PlainProblem | PairProblem
OPERATIONS: dict[type, str] = {
    ConvProblem: "conv",
    LinearProblem: "gemm",
    PoolProblem: "pool",
    ResizeProblem: "resize",
    ActivationProblem: "activation",
    SoftmaxProblem: "softmax",
    ArgmaxProblem: "argmax",
    ConvPairProblem: "conv_pair",
    LinearPairProblem: "gemm_pair",
}


def operation(problem: Problem) -> str:
    """Return the name that the registry gives to the problem's operation."""
    return OPERATIONS[type(problem)]


def without_epilogue(problem: ConvProblem) -> ConvProblem:
    """Return the problem without activation and pooling; reports call the time of such a problem the op time."""
    return replace(problem, activation="", pool=1, pool_is_max=False)


def tuning_key(problem: Problem) -> str:
    """Return the problem's unique key in tuning tables: the operation and every field that is not at its default."""
    if isinstance(problem, PairProblem):
        form = " exact" * problem.exact + " sparse" * getattr(problem, "sparse", False)
        layers = getattr(problem, "resize", None), problem.first, problem.second
        return f"{operation(problem)}{form}: " + "; ".join(tuning_key(layer) for layer in layers if layer is not None)
    values = ((field, getattr(problem, field.name)) for field in fields(problem))
    return " ".join([operation(problem), *(f"{x.name}={value}" for x, value in values if value != x.default)])
