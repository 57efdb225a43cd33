"""List the problems that every kernel must compute."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, TypeVar

from app.base.precision import epilogue_dtype, storage_dtype
from app.kernels.plain_problems import GROUP, ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearPairProblem,
    LinearProblem,
    PairProblem,
    PoolProblem,
    Problem,
    operation,
)
from app.kernels.registry import variants
from app.kernels.variant import KernelLaunch, LaunchConfig, Variant
from tests.support.convolutions import EDGES, EPILOGUES, LARGE, POOLED, SPARSE, TILED, UNPOOLED, network_convolutions
from tests.support.drawn_pairs import DRAWN_PAIRS, TILED_PAIRS

Own = TypeVar("Own", bound=Problem)


def row_of(kind: str, name: str) -> Variant:
    """Return the registry row of an operation with this name."""
    (row,) = (row for row in variants(kind) if row.name == name)
    return row


def toy_variant(step: int, name: str, **changes: Any) -> Variant:
    """Return an automatic float32 convolution row that accepts every problem. changes: other values of its fields."""
    launch = KernelLaunch(32, lambda _: (1, 1, 1))
    row = Variant("conv", step, name, "none", lambda *_: LaunchConfig({}, (launch,)), ("float32",))
    return replace(row, **{"automatic": True, **changes})


def convolution_pair(bias1: bool = False, bias2: bool = False) -> ConvPairProblem:
    """Return lenet5's two convolutions of bytes with their activations and poolings, as one problem."""
    first, second, *_ = network_convolutions(fused=True)
    return ConvPairProblem(replace(first, bias=bias1, input_dtype="uint8"), replace(second, bias=bias2))


def product_pair(inputs: int, hidden: int, classes: int, bias1: bool = False, bias2: bool = False) -> LinearPairProblem:
    """Return two products with ReLU between them and an argmax after them, as one problem."""
    return LinearPairProblem(
        LinearProblem(inputs, hidden, bias1, "relu"), LinearProblem(hidden, classes, bias2, argmax=True)
    )


def any_product_pair(
    inputs: int, hidden: int, classes: int, function: str, *, softmax: bool, bias: bool = True, reads: str = "float32"
) -> LinearPairProblem:
    """Return two products with this activation between them; after them an argmax, with or without a softmax."""
    return LinearPairProblem(
        LinearProblem(inputs, hidden, bias, function, input_dtype=reads),
        LinearProblem(hidden, classes, bias, argmax=True, softmax=softmax),
    )


def exactly(problem: ConvPairProblem) -> ConvPairProblem:
    """Return the problem for weights that float16 represents exactly; these do not include the pixel scale."""
    return replace(problem, exact=True, pixel_scale=1 / 255)


def sparsely(problem: ConvPairProblem) -> ConvPairProblem:
    """Return the problem for second filters with two weights of every four input maps."""
    return replace(problem, sparse=True)


def enlarging_pairs() -> list[ConvPairProblem]:
    """Return both convolutions of each network that enlarges images; minidnn86's last pooling without and with ceil."""
    found: list[ConvPairProblem] = []
    halves = network_convolutions(fused=True)[2:]
    for first, second in zip(halves[::2], halves[1::2], strict=True):
        resize = ResizeProblem(1, 28, 28, first.height)
        found.append(ConvPairProblem(replace(first, input_dtype="uint8"), second, resize=resize))
    return [*found[:-1], *(replace(found[-1], second=replace(found[-1].second, pool_ceil=c)) for c in (False, True))]


# For the kernel whose steps are 64 inputs and whose tiles are 64, 128 or 192 outputs.
RAGGED = [
    *((8, 1, ""), (24, 300, "tanh"), (64, 64, "relu"), (72, 65, ""), (128, 7, "sigmoid"), (136, 129, "relu")),
    *((520, 192, "tanh"), (1296, 32, "relu"), (1000, 193, ""), (4104, 160, "relu"), (200, 10, "")),
]
PRODUCTS = [
    LinearProblem(1024, 128, activation="relu"),
    LinearProblem(128, 10, argmax=True),
    LinearProblem(2904, 160, bias=True, activation="tanh"),
    LinearProblem(160, 10, bias=True),
    LinearProblem(784, 100, bias=True, activation="sigmoid", input_dtype="uint8"),
    LinearProblem(37, 19, bias=True, activation="relu"),
    LinearProblem(45, 32, bias=True, argmax=True),
    LinearProblem(37, 41, argmax=True),
    LinearProblem(100, 10, bias=True, argmax=True, softmax=True),
    *(LinearProblem(inputs, n, argmax=True, softmax=True) for inputs, n in ((45, 1), (64, 8), (136, 16), (37, 32))),
    LinearProblem(160, 17, bias=True, argmax=True, softmax=True),
    LinearProblem(1, 1, bias=True),
    LinearProblem(300, 257),
    LinearProblem(100_000, 33),
    LinearProblem(33, 100_000),
    *(
        LinearProblem(inputs, EDGES[(3 * at + 1) % len(EDGES)], *EPILOGUES[at % len(EPILOGUES)])
        for at, inputs in enumerate(EDGES)
    ),
    *(
        LinearProblem(inputs, outputs, bias=outputs % 2 == 0, activation=activation, exact=exact)
        for (inputs, outputs, activation), exact in product(RAGGED, (False, True))
    ),
]
OTHERS: list[Problem] = [
    PoolProblem(32, 24, 24, 2, 2, False),
    PoolProblem(16, 34, 34, 4, 4, True),
    PoolProblem(3, 7, 9, 3, 2, True),
    PoolProblem(1, 5, 5, 5, 1, False),
    PoolProblem(1000, 61, 17, 3, 3, False),
    PoolProblem(2, 500, 300, 7, 3, True),
    PoolProblem(16, 34, 34, 4, 4, True, ceil=True),
    PoolProblem(3, 8, 10, 3, 2, False, ceil=True),
    PoolProblem(5, 6, 9, 2, 4, False, ceil=True),
    PoolProblem(2, 500, 302, 7, 3, True, ceil=True),
    PoolProblem(2, 29, 35, 3, 2, True, padding=1),
    PoolProblem(3, 8, 11, 4, 1, False, padding=1, extra_padding=1),
    PoolProblem(3, 17, 6, 5, 2, False, ceil=True, padding=2, count_padding=True),
    *(ResizeProblem(1, 28, 28, size) for size in (70, 72, 86)),
    ResizeProblem(3, 7, 9, 13),
    ResizeProblem(2, 30, 21, 5),
    ResizeProblem(1, 1, 1, 3),
    ResizeProblem(1, 6, 6, 6),
    ResizeProblem(1, 3, 1000, 1024),
    ResizeProblem(5, 4, 3, 1),
    *(ResizeProblem(1, 28, 28, size, "course") for size in (48, 86)),
    ResizeProblem(3, 7, 9, 13, "course"),
    ResizeProblem(2, 30, 21, 5, "course"),
    ResizeProblem(1, 1, 1, 3, "course"),
    ResizeProblem(1, 3, 1000, 1024, "course"),
    ActivationProblem(1, "relu"),
    ActivationProblem(4608, "tanh"),
    ActivationProblem(777, "sigmoid"),
    ActivationProblem(777, "leakyrelu:0.3"),
    SoftmaxProblem(1),
    SoftmaxProblem(10),
    SoftmaxProblem(1000),
    ArgmaxProblem(1),
    ArgmaxProblem(10),
    ArgmaxProblem(256),
]
LENET5_PAIRS = [convolution_pair(*biases) for biases in ((False, False), (True, True), (True, False))]
NETWORK_PAIRS = enlarging_pairs()
ANY_PAIRS = [*NETWORK_PAIRS, *DRAWN_PAIRS, *TILED_PAIRS]
SPARSE_PAIRS = [
    sparsely(form)
    for pair in [*NETWORK_PAIRS[:2], *TILED_PAIRS]
    if pair.first.maps % GROUP == 0
    for form in (pair, exactly(pair))
]
CONVOLUTION_PAIRS = [
    *LENET5_PAIRS,
    exactly(LENET5_PAIRS[0]),
    *map(sparsely, (LENET5_PAIRS[0], exactly(LENET5_PAIRS[0]))),
    *(form for pair in ANY_PAIRS for form in (pair, exactly(pair))),
    *SPARSE_PAIRS,
]
ANY_PRODUCT_PAIRS = [
    any_product_pair(784, 100, 10, "sigmoid", softmax=True, reads="uint8"),
    any_product_pair(2904, 160, 10, "tanh", softmax=True),
    any_product_pair(1296, 32, 10, "relu", softmax=True),
    any_product_pair(8, 7, 1, "", softmax=True, bias=False),
    any_product_pair(72, 192, 64, "", softmax=False),
    any_product_pair(136, 129, 33, "sigmoid", softmax=True, bias=False, reads="uint8"),
    any_product_pair(520, 65, 16, "tanh", softmax=False, bias=False),
]
PRODUCT_PAIRS = [
    product_pair(1024, 128, 10),
    product_pair(1024, 128, 10, True, True),
    product_pair(64, 32, 3, bias1=True),
    product_pair(192, 96, 32, bias2=True),
    product_pair(320, 64, 10),
    product_pair(128, 160, 1, True, True),
    product_pair(448, 256, 17),
    *(replace(product_pair(*sizes), exact=True) for sizes in ((1024, 128, 10), (256, 128, 16, True, True))),
    *(form for pair in ANY_PRODUCT_PAIRS for form in (pair, replace(pair, exact=True))),
]
GRID: dict[str, list[Problem]] = {
    "conv": [*POOLED, *UNPOOLED, *LARGE, *TILED, *SPARSE],
    "gemm": [*PRODUCTS],
    "conv_pair": [*CONVOLUTION_PAIRS],
    "gemm_pair": [*PRODUCT_PAIRS],
    **{name: [problem for problem in OTHERS if operation(problem) == name] for name in map(operation, OTHERS)},
}


def typed(problem: Own, dtype: str) -> Own:
    """Return the problem in this arithmetic type, with activations stored in it; bytes stay bytes with float32 results.

    The results of a pair are stored as in plans: features in the type, scores in float32.
    """
    if isinstance(problem, PairProblem):
        stored, reads = storage_dtype(dtype), problem.first.input_dtype
        writes = stored if isinstance(problem, ConvPairProblem) else epilogue_dtype(dtype)
        first: Any = replace(
            problem.first, input_dtype=reads if reads == "uint8" else stored, dtype=dtype, output_dtype=stored
        )
        second: Any = replace(problem.second, input_dtype=stored, dtype=dtype, output_dtype=writes)
        return replace(problem, first=first, second=second)
    if not isinstance(problem, ConvProblem | LinearProblem):
        return replace(problem, dtype=dtype)
    if problem.input_dtype == "uint8":
        return replace(problem, dtype=dtype, output_dtype=epilogue_dtype(dtype))
    return replace(problem, dtype=dtype, input_dtype=storage_dtype(dtype), output_dtype=storage_dtype(dtype))


def multiplied(problem: Own, dtype: str) -> Own:
    """Return the problem in this arithmetic type, with activations stored as before; a pair as ``typed`` returns it."""
    return typed(problem, dtype) if isinstance(problem, PairProblem) else replace(problem, dtype=dtype)


def exists_in(problem: Problem, dtype: str) -> bool:
    """Return whether the problem exists in this type: ``exact`` and ``bounded`` are only for split numbers."""
    return dtype == "float16x2" or not (getattr(problem, "exact", False) or getattr(problem, "bounded", False))


@cache
def _typed_grid(name: str, dtypes: tuple[str, ...]) -> list[Problem]:
    return [typed(problem, dtype) for dtype in dtypes for problem in GRID[name] if exists_in(problem, dtype)]


def problems(row: Variant) -> list[Problem]:
    """Return all problems of the grid that the row's declared types and pooling allow."""
    return [p for p in _typed_grid(row.operation, row.dtypes) if row.pools or getattr(p, "pool", 1) == 1]


_served: dict[tuple[int, str], tuple[Variant, list[Problem]]] = {}  # by the row's identity: rows have no hash


def served(row: Variant, arch: str) -> list[Problem]:
    """Return the problems of the grid that the row can compute on the architecture."""
    if (id(row), arch) not in _served:
        _served[id(row), arch] = (
            row,
            [problem for problem in problems(row) if row.refusal_reason(problem, arch) is None],
        )
    return _served[id(row), arch][1]
