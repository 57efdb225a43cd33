"""What a kernel is asked to do: one frozen record per operation, and the arguments its kernels take.

All sizes are per image. ``input_dtype`` and ``output_dtype`` say how activations lie in memory, ``dtype`` how numbers
are multiplied: ``float64``, ``float32``, ``float16x2`` (float32 in memory, multiplied as the sum of two float16),
``tfloat32`` (float32 in memory, rounded to 11 bits by the tensor cores) or ``float16``. Whatever the dtype, biases are
added and activations computed in float32 (float64 for float64).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod

from app.kernels.argument import DTYPES as DTYPES
from app.kernels.argument import ITEMSIZE, Argument, storage, wide
from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, PoolProblem, ResizeProblem, SoftmaxProblem


@dataclass(frozen=True)
class ConvProblem:
    """Convolution (cross-correlation, no padding), then bias, activation and pooling where asked for."""

    channels: int
    height: int
    width: int
    maps: int
    kernel: int
    stride: int = 1
    bias: bool = False
    activation: str = ""  # "", relu, tanh or sigmoid
    pool: int = 1  # window and stride; 1: no pooling
    pool_is_max: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"
    output_dtype: str = "float32"

    @property
    def sizes(self) -> tuple[int, ...]:
        """C, H, W, M, K, S."""
        return self.channels, self.height, self.width, self.maps, self.kernel, self.stride

    @property
    def depth(self) -> int:
        """Products in one sum: C * K * K."""
        return self.channels * self.kernel**2

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width before pooling."""
        return (self.height - self.kernel) // self.stride + 1, (self.width - self.kernel) // self.stride + 1

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output."""
        height, width = self.convolved
        return height // self.pool, width // self.pool

    @property
    def flops(self) -> int:
        """Operations of the convolution itself, two for each product."""
        return 2 * self.maps * prod(self.convolved) * self.depth

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), w (C, K, K, M), bias (M), y (M, PH, PW)."""
        return (
            Argument("x", self.input_dtype, per_image=self.channels * self.height * self.width),
            Argument("w", storage(self.dtype), fixed=self.depth * self.maps),
            Argument("bias", wide(self.dtype), fixed=self.maps, optional=not self.bias),
            Argument("y", self.output_dtype, per_image=self.maps * prod(self.pooled)),
        )


@dataclass(frozen=True)
class LinearProblem:
    """Matrix product with (inputs, outputs) weights, then bias, activation and argmax where asked for."""

    inputs: int
    outputs: int
    bias: bool = False
    activation: str = ""  # "", relu, tanh or sigmoid
    argmax: bool = False
    input_dtype: str = "float32"
    dtype: str = "float32"
    output_dtype: str = "float32"

    @property
    def flops(self) -> int:
        """Operations of the product itself, two for each weight."""
        return 2 * self.inputs * self.outputs

    def arguments(self) -> tuple[Argument, ...]:
        """x (inputs), w (inputs, outputs), bias (outputs), y (outputs) and, with argmax, one label."""
        arguments = (
            Argument("x", self.input_dtype, per_image=self.inputs),
            Argument("w", storage(self.dtype), fixed=self.inputs * self.outputs),
            Argument("bias", wide(self.dtype), fixed=self.outputs, optional=not self.bias),
            Argument("y", self.output_dtype, per_image=self.outputs),
        )
        return (*arguments, Argument("labels", "uint8", per_image=1)) if self.argmax else arguments


@dataclass(frozen=True)
class ConvPairProblem:
    """Two convolutions, each with its bias, activation and pooling; the second reads what the first writes."""

    first: ConvProblem
    second: ConvProblem

    @property
    def dtype(self) -> str:
        """How both multiply."""
        return self.first.dtype

    @property
    def flops(self) -> int:
        """Operations of both convolutions."""
        return self.first.flops + self.second.flops

    def arguments(self) -> tuple[Argument, ...]:
        """x (C, H, W), w1 (C, K, K, M), bias1 (M), w2, bias2, y (M, PH, PW); all but x, y float32."""
        x, _, _, _ = self.first.arguments()
        _, _, _, y = self.second.arguments()
        return x, *_parameters(self.first, "1"), *_parameters(self.second, "2"), y


@dataclass(frozen=True)
class LinearPairProblem:
    """Two matrix products, each with its bias and activation, and the argmax of the second's results."""

    first: LinearProblem
    second: LinearProblem

    @property
    def dtype(self) -> str:
        """How both multiply."""
        return self.first.dtype

    @property
    def flops(self) -> int:
        """Operations of both products."""
        return self.first.flops + self.second.flops

    def arguments(self) -> tuple[Argument, ...]:
        """x (inputs), w1 (inputs, outputs), bias1, w2, bias2, y (outputs), labels (1); weights as float32."""
        results = self.second.arguments()[3:]
        return self.first.arguments()[0], *_parameters(self.first, "1"), *_parameters(self.second, "2"), *results


def _parameters(problem: ConvProblem | LinearProblem, number: str) -> tuple[Argument, Argument]:
    """Weights and bias of one half of a pair."""
    _, w, bias, *_ = problem.arguments()
    return replace(w, name=f"w{number}", dtype="float32"), replace(bias, name=f"bias{number}")


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
    """The registry's name of the operation that the problem belongs to."""
    return OPERATIONS[type(problem)]


def alone(problem: ConvProblem) -> ConvProblem:
    """The convolution and its bias without activation and pooling: what the seed systems call an op."""
    return replace(problem, activation="", pool=1, pool_is_max=False)


def key(problem: Problem) -> str:
    """A short unique text: the operation and every field that is not its default, e.g. for tuning tables."""
    if isinstance(problem, PairProblem):
        return f"{operation(problem)}: {key(problem.first)}; {key(problem.second)}"
    values = (
        f"{field.name}={getattr(problem, field.name)}"
        for field in fields(problem)
        if getattr(problem, field.name) != field.default
    )
    return " ".join([operation(problem), *values])


def bytes_moved(problem: Problem, images: int) -> int:
    """The least that must cross device memory for ``images`` images: every argument read or written once."""
    return sum(
        (argument.fixed + argument.per_image * images) * ITEMSIZE[argument.dtype]
        for argument in problem.arguments()
        if not argument.optional
    )
