"""Registry rows of pooling, resizing, activations, softmax and argmax."""

from math import prod

from app.kernels.problems import ITEMSIZE, ActivationProblem, ArgmaxProblem, PoolProblem, ResizeProblem, SoftmaxProblem
from app.kernels.variant import (
    BLOCK,
    FLOATS,
    STATIC_SHARED_LIMIT,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Variant,
    activation_name,
    elementwise,
    same_types,
    serves_all,
    tiles,
)

STORED = (*FLOATS, "float16")
RESIZED = 16  # about how many outputs a thread of a resizing computes


def _pool_defines(problem: PoolProblem) -> dict[str, str | int]:
    return same_types(problem.dtype) | {
        "WINDOW": problem.window,
        "STRIDE": problem.stride,
        "IS_MAX": int(problem.is_max),
        "CHANNELS": problem.channels,
        "H": problem.height,
        "W": problem.width,
    }


def _pool_direct(problem: PoolProblem, _: Parameters) -> LaunchConfig:
    return elementwise(_pool_defines(problem), problem.channels * prod(problem.pooled))


def _pool_tile(problem: PoolProblem, tile: int) -> tuple[tuple[int, int], int]:
    """Height and width of a tile of at most tile x tile outputs, and the bytes of the input under it."""
    height, width = (min(tile, size) for size in problem.pooled)
    pixels = prod((size - 1) * problem.stride + problem.window for size in (height, width))
    return (height, width), pixels * ITEMSIZE[problem.dtype]


def _pool_shared_defaults(problem: PoolProblem) -> dict[str, int]:
    fitting = (tile for tile in (16, 8, 4, 2) if _pool_tile(problem, tile)[1] <= STATIC_SHARED_LIMIT)
    return {"TILE": next(fitting, 1)}


def _pool_shared(problem: PoolProblem, parameters: Parameters) -> LaunchConfig:
    (height, width), map_bytes = _pool_tile(problem, parameters["TILE"])
    # As many maps as give each thread an output, within the shared memory that every card has.
    maps = max(min(BLOCK // (height * width), STATIC_SHARED_LIMIT // map_bytes), 1)
    per_group = tiles(problem.pooled[0], height) * tiles(problem.pooled[1], width)
    launch = KernelLaunch(
        BLOCK,
        lambda images: (tiles(images * problem.channels, maps) * per_group, 1, 1),
        shared_bytes=maps * map_bytes,
    )
    return LaunchConfig(_pool_defines(problem) | {"TILE_H": height, "TILE_W": width, "MAPS": maps}, (launch,))


def _resize_bilinear(problem: ResizeProblem, _: Parameters) -> LaunchConfig:
    parts = tiles(problem.size**2, BLOCK * RESIZED)
    constants: dict[str, str | int] = {
        "H": problem.height,
        "W": problem.width,
        "SIZE": problem.size,
        "PARTS": parts,
        "THREADS": BLOCK,
    }
    return LaunchConfig(constants, (KernelLaunch(BLOCK, lambda images: (images * problem.channels * parts, 1, 1)),))


def _activation_elementwise(problem: ActivationProblem, _: Parameters) -> LaunchConfig:
    constants: dict[str, str | int] = {"SIZE": problem.size, "ACTIVATION": activation_name(problem.function)}
    return elementwise(same_types(problem.dtype) | constants, problem.size)


def _softmax_rows(problem: SoftmaxProblem, _: Parameters) -> LaunchConfig:
    return elementwise(same_types(problem.dtype) | {"CLASSES": problem.classes}, 32)  # a warp for each row


def _argmax_rows(problem: ArgmaxProblem, _: Parameters) -> LaunchConfig:
    return elementwise(same_types(problem.dtype) | {"N": problem.classes}, 1)


def _argmax_refuses(problem: ArgmaxProblem) -> str | None:
    return "a label is one byte: at most 256 classes" if problem.classes > 256 else None


OTHER_ROWS: tuple[Variant, ...] = (
    Variant(
        "pool",
        1,
        "direct",
        summary="one thread per output element, any window and stride",
        system="lenet5, minidnn86",
        dtypes=STORED,
        refuses=serves_all,
        configure=_pool_direct,
        automatic=True,
    ),
    Variant(
        "pool",
        2,
        "shared",
        summary="the input tile is staged in shared memory before it is pooled",
        system="lenet5 (tried and dropped there)",
        dtypes=STORED,
        refuses=serves_all,
        configure=_pool_shared,
        limits="a window fits into shared memory",
        tunables={"TILE": (4, 8, 16, 32)},
        defaults=_pool_shared_defaults,
    ),
    Variant(
        "resize",
        1,
        "bilinear",
        summary="bilinear interpolation of bytes in exact integers, four neighbours a thread and store",
        system="fa19, k7, minidnn86",
        dtypes=("uint8",),
        refuses=serves_all,
        configure=_resize_bilinear,
        automatic=True,
    ),
    Variant(
        "activation",
        1,
        "elementwise",
        summary="ReLU, tanh or sigmoid, one thread per element",
        system="lenet5, fa19, mlp",
        dtypes=STORED,
        refuses=serves_all,
        configure=_activation_elementwise,
        automatic=True,
    ),
    Variant(
        "softmax",
        1,
        "rows",
        summary="one warp per row: maximum and sum by shuffles, then the division",
        system="fa19, minidnn86, mlp",
        dtypes=STORED,
        refuses=serves_all,
        configure=_softmax_rows,
        automatic=True,
    ),
    Variant(
        "argmax",
        1,
        "rows",
        summary="one thread per row",
        system="lenet5",
        dtypes=STORED,
        refuses=_argmax_refuses,
        configure=_argmax_rows,
        limits="at most 256 classes (a label is one byte)",
        automatic=True,
    ),
)
