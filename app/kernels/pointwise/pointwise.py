"""Define the registry rows of pooling, resizing, activations, softmax and argmax."""

from functools import partial
from math import prod

from app.base.precision import epilogue_dtype
from app.kernels.plain_problems import ITEMSIZE, ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import PoolProblem
from app.kernels.variant import (
    BLOCK,
    STATIC_SHARED_LIMIT,
    STORED,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Variant,
    activation_name,
    ceil_div,
    configure_elementwise,
    pooled_size_defines,
)

RESIZED = 16  # approximate number of outputs per thread in a resizing


def uniform_type_defines(dtype: str) -> dict[str, str | int]:
    """Return the constants INPUT, REAL and OUTPUT for an operation that reads and writes one type."""
    return {"INPUT": dtype, "REAL": epilogue_dtype(dtype), "OUTPUT": dtype}


def pool_defines(problem: PoolProblem) -> dict[str, str | int]:
    """Return the compile-time constants of a pooling kernel: its types and all sizes of the problem."""
    sizes = {"CHANNELS": problem.channels, "H": problem.height, "W": problem.width}
    window = {"WINDOW": problem.window, "STRIDE": problem.stride, "IS_MAX": int(problem.is_max)}
    padding = {"PADDING": problem.padding, "COUNTED": problem.counted_padding}
    return uniform_type_defines(problem.dtype) | sizes | window | padding | pooled_size_defines(problem)


def _configure_pool_direct(problem: PoolProblem, _: Parameters) -> LaunchConfig:
    return configure_elementwise(pool_defines(problem), problem.channels * prod(problem.pooled_size))


def _pool_tile(problem: PoolProblem, tile: int) -> tuple[tuple[int, int], int]:
    """Return (height, width) of a tile of at most tile x tile outputs, and the bytes of one map's input for it."""
    height, width = (min(tile, size) for size in problem.pooled_size)
    pixels = prod((size - 1) * problem.stride + problem.window for size in (height, width))
    return (height, width), pixels * ITEMSIZE[problem.dtype]


def _default_tile_of_shared_pool(problem: PoolProblem) -> dict[str, int]:
    fitting = (tile for tile in (16, 8, 4, 2) if _pool_tile(problem, tile)[1] <= STATIC_SHARED_LIMIT)
    return {"TILE": next(fitting, 1)}


def _configure_pool_shared(problem: PoolProblem, parameters: Parameters) -> LaunchConfig:
    (height, width), map_bytes = _pool_tile(problem, parameters["TILE"])
    # Enough maps to give each thread an output, within the shared memory of every card.
    maps = max(min(BLOCK // (height * width), STATIC_SHARED_LIMIT // map_bytes), 1)
    per_group = ceil_div(problem.pooled_size[0], height) * ceil_div(problem.pooled_size[1], width)
    launch = KernelLaunch(
        BLOCK,
        lambda images: (ceil_div(images * problem.channels, maps) * per_group, 1, 1),
        shared_bytes=maps * map_bytes,
    )
    return LaunchConfig(pool_defines(problem) | {"TILE_H": height, "TILE_W": width, "MAPS": maps}, (launch,))


def _configure_resize_bilinear(problem: ResizeProblem, _: Parameters) -> LaunchConfig:
    parts = ceil_div(problem.size**2, BLOCK * RESIZED)
    launch = KernelLaunch(BLOCK, lambda images: (images * problem.channels * parts, 1, 1))
    sizes = {"H": problem.height, "W": problem.width, "SIZE": problem.size}
    course = int(problem.rule == "course")
    return LaunchConfig({**sizes, "COURSE": course, "PARTS": parts, "THREADS": BLOCK}, (launch,))


def _configure_activation(problem: ActivationProblem, _: Parameters) -> LaunchConfig:
    constants: dict[str, str | int] = {"SIZE": problem.size, "ACTIVATION": activation_name(problem.function)}
    return configure_elementwise(uniform_type_defines(problem.dtype) | constants, problem.size)


def _configure_softmax(problem: SoftmaxProblem, _: Parameters) -> LaunchConfig:
    return configure_elementwise(
        uniform_type_defines(problem.dtype) | {"CLASSES": problem.classes}, 32
    )  # a warp for each row


def _configure_argmax(problem: ArgmaxProblem, _: Parameters) -> LaunchConfig:
    return configure_elementwise(uniform_type_defines(problem.dtype) | {"N": problem.classes}, 1)


_row = partial(Variant, automatic=True)
ROWS: tuple[Variant, ...] = (
    _row(
        "pool",
        1,
        "direct",
        system="lenet5, minidnn86",
        configure=_configure_pool_direct,
        dtypes=STORED,
        summary="one thread per output element, any window and stride",
    ),
    Variant(
        "pool",
        2,
        "shared",
        system="lenet5 (tried and dropped there)",
        configure=_configure_pool_shared,
        dtypes=STORED,
        since="direct",
        summary="the input tile is staged in shared memory before it is pooled",
        limits="a window fits into shared memory",
        tunables={"TILE": (4, 8, 16, 32)},
        defaults=_default_tile_of_shared_pool,
    ),
    _row(
        "resize",
        1,
        "bilinear",
        system="fa19, k7, minidnn86",
        configure=_configure_resize_bilinear,
        dtypes=("uint8",),
        summary="bilinear interpolation of bytes in exact integers, four neighbours a thread and store",
    ),
    _row(
        "activation",
        1,
        "elementwise",
        system="lenet5, fa19, mlp",
        configure=_configure_activation,
        dtypes=STORED,
        summary="ReLU, tanh or sigmoid, one thread per element",
    ),
    _row(
        "softmax",
        1,
        "rows",
        system="fa19, minidnn86, mlp",
        configure=_configure_softmax,
        dtypes=STORED,
        summary="one warp per row: maximum and sum by shuffles, then the division",
    ),
    _row(
        "argmax",
        1,
        "rows",
        system="lenet5",
        configure=_configure_argmax,
        dtypes=STORED,
        summary="one thread per row",
        refuses=lambda problem: "a label is one byte: at most 256 classes" if problem.classes > 256 else None,
        limits="at most 256 classes (a label is one byte)",
    ),
)
