"""List the cases of the GPU tests: every registry row in each of its types on a grid of problems and batch sizes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from app.cuda.device import describe_gpu, why_no_gpu
from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import ConvProblem, LinearProblem, PairProblem, PoolProblem, Problem
from app.kernels.registry import variants
from app.kernels.variant import Variant
from tests.support import kernel_grid
from tests.support.convolutions import POOLED, SPARSE, TILED, TILED_SIZES, UNPOOLED
from tests.support.drawn_pairs import DRAWN_PAIRS, TILED_PAIRS
from tests.support.kernel_grid import (
    SPARSE_PAIRS,
    any_product_pair,
    convolution_pair,
    exactly,
    exists_in,
    multiplied,
    product_pair,
    sparsely,
    typed,
)

# That sum in float32 in another order than the plainest kernel, and so with other bits.
OWN_ORDER = {("conv", "cublas"), ("conv", "toom-cook"), ("gemm", "cublas"), ("gemm", "split-k")}
STRIDE_1 = ("toom-cook",)  # rows that serve no other
OPERATIONS = ("conv", "gemm", "conv_pair", "gemm_pair", "pool", "resize", "activation", "softmax", "argmax")


GRID: dict[str, Sequence[Problem]] = {**kernel_grid.GRID, "conv": [*UNPOOLED, *POOLED, *TILED, *SPARSE, *TILED_SIZES]}
# How x and y may lie in memory, whatever the arithmetic: several channels, one channel (first layers), features.
STORAGES = [(x, y) for x in ("uint8", "float16", "float32") for y in ("float16", "float32")]
STORED: dict[str, Sequence[ConvProblem | LinearProblem]] = {
    "conv": [
        *(
            ConvProblem(5, 12, 17, 33, 3, 2, bias=True, activation="relu", input_dtype=x, output_dtype=y)
            for x, y in STORAGES
        ),
        *(ConvProblem(1, 15, 20, 17, 4, bias=True, input_dtype=x, output_dtype=y) for x, y in STORAGES),
        *(
            ConvProblem(3, 11, 10, 5, 2, activation="tanh", pool=2, input_dtype=x, output_dtype=y, pool_ceil=ceil)
            for x, y in STORAGES
            for ceil in (False, True)
        ),
        *(ConvProblem(3, 6, 9, 19, 3, bias=True, input_dtype=x, output_dtype=y, padding=1) for x, y in STORAGES),
        *(ConvProblem(1, 7, 10, 17, 4, 2, input_dtype=x, output_dtype=y, padding=3) for x, y in STORAGES),
    ],
    "gemm": [LinearProblem(45, 33, bias=True, activation="relu", input_dtype=x, output_dtype=y) for x, y in STORAGES],
}
# Where parameters other than the defaults are tried, one after the other.
TUNED: dict[str, Sequence[Problem]] = {
    "conv": [
        ConvProblem(4, 19, 23, 33, 5, bias=True, activation="relu"),
        ConvProblem(4, 19, 23, 33, 5, bias=True, activation="relu", pool=2),
        ConvProblem(4, 19, 23, 33, 5, bias=True, activation="relu", pool=2, pool_ceil=True),
        ConvProblem(4, 11, 17, 33, 5, bias=True, activation="relu", padding=3),
        TILED[3],
        SPARSE[2],
    ],
    "gemm": [
        LinearProblem(70, 33, bias=True, activation="relu"),
        LinearProblem(70, 10, bias=True, argmax=True),
        LinearProblem(70, 21, bias=True, argmax=True, softmax=True),
        *(LinearProblem(200, 130, bias=True, activation="relu", exact=exact) for exact in (False, True)),
    ],
    "conv_pair": [convolution_pair(), sparsely(convolution_pair()), TILED_PAIRS[3], SPARSE_PAIRS[4]],
    "gemm_pair": [
        product_pair(192, 96, 10, True, True),
        product_pair(1024, 128, 10),
        replace(product_pair(1024, 128, 10), exact=True),
        any_product_pair(200, 130, 33, "tanh", softmax=True),
    ],
    "pool": [PoolProblem(3, 37, 29, 3, 2, False), PoolProblem(3, 37, 30, 3, 2, False, ceil=True)],
}
# Few and small, for the sanitizers; each is served by a handful of blocks with ragged edges.
SMALL: dict[str, Sequence[Problem]] = {
    "conv": [
        ConvProblem(3, 13, 10, 17, 3, 2, bias=True, activation="relu"),
        ConvProblem(1, 12, 15, 5, 4, input_dtype="uint8"),
        ConvProblem(2, 9, 12, 19, 3, activation="tanh", pool=2),
        ConvProblem(2, 9, 13, 19, 3, activation="tanh", pool=2, pool_ceil=True),
        ConvProblem(3, 3, 7, 9, 5, 2, bias=True, padding=4),
        ConvProblem(1, 6, 9, 5, 4, input_dtype="uint8", padding=2),
        *TILED[:3],
        TILED[6],
        *SPARSE[:4],
    ],
    "gemm": [
        LinearProblem(37, 19, bias=True, activation="relu"),
        LinearProblem(45, 10, argmax=True),
        LinearProblem(136, 13, bias=True, argmax=True),
        LinearProblem(72, 21, bias=True, argmax=True, softmax=True),
        LinearProblem(136, 15, bias=True, argmax=True, softmax=True),
        *(LinearProblem(72, 65, bias=True, activation="relu", exact=exact) for exact in (False, True)),
    ],
    "conv_pair": [
        *(convolution_pair(), convolution_pair(True, True), exactly(convolution_pair())),
        *map(sparsely, (convolution_pair(), exactly(convolution_pair()))),
        *(DRAWN_PAIRS[0], exactly(DRAWN_PAIRS[1]), DRAWN_PAIRS[2], DRAWN_PAIRS[10]),
        *(TILED_PAIRS[3], exactly(TILED_PAIRS[9]), TILED_PAIRS[9]),
        *SPARSE_PAIRS[4:8:3],
    ],
    "gemm_pair": [
        product_pair(64, 32, 19, True, True),
        product_pair(128, 64, 10),
        product_pair(1024, 128, 10, True, True),
        replace(product_pair(256, 128, 10, True, True), exact=True),
        any_product_pair(72, 65, 17, "tanh", softmax=True),
        any_product_pair(136, 33, 10, "sigmoid", softmax=True, reads="uint8"),
    ],
    "pool": [
        PoolProblem(3, 7, 9, 3, 2, True),
        PoolProblem(2, 21, 18, 2, 2, False),
        PoolProblem(3, 8, 10, 3, 2, True, ceil=True),
        PoolProblem(2, 21, 18, 4, 4, False, ceil=True),
        PoolProblem(2, 9, 6, 3, 2, True, padding=2),
        PoolProblem(3, 7, 5, 4, 1, False, padding=1, extra_padding=1, count_padding=True),
    ],
    "resize": [ResizeProblem(3, 7, 9, 13), ResizeProblem(2, 5, 3, 9, "course")],
    "activation": [ActivationProblem(77, "tanh")],
    "softmax": [SoftmaxProblem(41)],
    "argmax": [ArgmaxProblem(10)],
}


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """A variant on a problem, with the parameters that differ from its defaults."""

    row: Variant
    problem: Problem
    parameters: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        changed = "".join(f"-{name}{value}" for name, value in self.parameters)
        return f"{self.row.operation}_{self.row.step:02}-{describe(self.problem)}{changed}"

    __repr__ = __str__

    @property
    def refusal(self) -> str | None:
        """Return why the row cannot compute the problem on the architecture under test; None if it can."""
        return self.row.refusal_reason(self.problem, architecture(), dict(self.parameters))


@cache
def architecture() -> str:
    """Return the architecture of the GPU, or that of the H100 without a GPU, so that the cases are the same."""
    return describe_gpu()["architecture"] if why_no_gpu() is None else "sm_90a"


def describe(problem: Problem) -> str:
    """Return a short text for test names: types, sizes, epilogue."""
    if isinstance(problem, PairProblem):
        resize, sparse = getattr(problem, "resize", None), getattr(problem, "sparse", False)
        source = "" if resize is None else f"{describe(resize)}--"
        return (
            f"{source}{describe(problem.first)}--{describe(problem.second)}"
            + "-exact" * problem.exact
            + "-sparse" * sparse
        )
    if not isinstance(problem, ConvProblem | LinearProblem):
        return "-".join([problem.dtype, *(str(value) for name, value in vars(problem).items() if name != "dtype")])
    kinds = f"{problem.input_dtype}*{problem.dtype}={problem.output_dtype}"
    if isinstance(problem, LinearProblem):
        epilogue = "-bias" * problem.bias + "-softmax" * problem.softmax + "-argmax" * problem.argmax
        epilogue += f"-{problem.activation or 'none'}"
        epilogue += "-exact" * problem.exact
        return f"{kinds}-{problem.inputs}x{problem.outputs}{epilogue}"
    sizes = "{}x{}x{}-M{}-K{}S{}".format(*problem.sizes) + f"P{problem.padding}" * (problem.padding > 0)
    epilogue = "-bias" * problem.bias + "-" * bool(problem.activation) + problem.activation
    pooled = f"-{'max' if problem.pool_is_max else 'avg'}{problem.pool}" if problem.pool > 1 else ""
    known = "-bounded" * problem.bounded + "-exact" * problem.exact + "-sparse" * problem.sparse
    return f"{kinds}-{sizes}{epilogue}{pooled}" + "-ceil" * problem.pool_ceil + known


def batches(problem: Problem) -> tuple[int, ...]:
    """Return the batch sizes for a problem, the largest first: 67, 5 and 1 if NumPy computes so many quickly."""
    elements = sum(argument.per_image for argument in problem.arguments())
    most = next((n for n in (67, 5, 3) if n * problem.flops <= 9e7 and n * elements <= 3e6), 1)
    return {67: (67, 5, 1), 1: (1,)}.get(most, (most, 1))


def served(row: Variant, problems: Iterable[Problem], *types: str, store: bool = True) -> Iterator[Case]:
    """Yield the problems that the row can compute, in each of its types or of ``types``.

    store: store activations in that type, too.
    """
    for dtype in [dtype for dtype in row.dtypes if dtype in types or not types]:
        for problem in (problem for problem in problems if exists_in(problem, dtype)):
            case = Case(row, (typed if store else multiplied)(problem, dtype))
            if case.refusal is None:
                yield case


def on_a_card(cases: Callable[[], Iterable[Case]]) -> list[Case]:
    """Return the cases of a GPU test, or none without a GPU, because listing them takes a second."""
    return [*cases()] if why_no_gpu() is None else []


@cache
def grid_cases() -> tuple[Case, ...]:
    """Return cases of every row on the whole grid, and on every pair of storage types."""
    return tuple(
        case
        for name in OPERATIONS
        for row in variants(name)
        for case in (*served(row, GRID[name]), *served(row, STORED.get(name, ()), store=False))
    )


@cache
def tuned_cases() -> tuple[Case, ...]:
    """Return cases of every row with each value of each parameter, all other parameters at their defaults."""
    found = []
    for name, problems in TUNED.items():
        for row in variants(name):
            for case in served(row, problems):
                defaults = row.defaults(case.problem)
                found += [
                    tuned
                    for parameter, values in row.tunables.items()
                    for value in ((1,) if parameter == "MIB" else values)  # small pieces: several serve a batch
                    for tuned in [replace(case, parameters=((parameter, value),))]
                    if value != defaults[parameter] and tuned.refusal is None
                ]
    return tuple(found)


@cache
def small_cases() -> tuple[Case, ...]:
    """Return cases of every row, in each of its types, on the small problems for the sanitizers."""
    return tuple(case for name in OPERATIONS for row in variants(name) for case in served(row, SMALL[name]))


def elements(problem: Problem) -> int:
    """Return the number of elements of y per image."""
    return next(argument.per_image for argument in problem.arguments() if argument.name in ("y", "labels"))


def weight_shape(problem: ConvProblem | LinearProblem) -> tuple[int, ...]:
    """Return the shape of the weights as kernels take them, outputs last."""
    if isinstance(problem, ConvProblem):
        return problem.channels, problem.kernel, problem.kernel, problem.maps
    return problem.inputs, problem.outputs


def input_shape(problem: Problem) -> tuple[int, ...]:
    """Return the shape of one image's input."""
    if isinstance(problem, PairProblem):
        resize = getattr(problem, "resize", None)
        return input_shape(problem.first if resize is None else resize)
    if isinstance(problem, ConvProblem | PoolProblem | ResizeProblem):
        return problem.channels, problem.height, problem.width
    return (problem.arguments()[0].per_image,)
