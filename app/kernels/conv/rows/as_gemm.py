"""Define the registry rows of convolutions as matrix products: im2col, library, implicit GEMM, register tiles."""

from collections.abc import Callable
from functools import partial
from math import prod

from app.base.precision import epilogue_dtype
from app.kernels.plain_problems import ITEMSIZE, Argument, max_workspace_images
from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    BLOCK,
    FLOATS,
    STATIC_SHARED_LIMIT,
    STORED,
    Grid,
    KernelLaunch,
    LaunchConfig,
    LibraryGemm,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    pooling_defines,
    type_defines,
    weight_reordering_packing,
)

# MiB for the im2col matrix and the product: large ones fill the GPU, small ones stay in the L2 cache.
_WORKSPACE: dict[str, tuple[int, ...]] = {"MIB": (16, 32, 64, 128, 256, 512)}
COLUMN_TUNABLES = {"BM": (8, 16, 24, 32, 64), "BN": (32, 64, 128, 256), "BK": (8, 16, 25, 32), "TM": (4, 8)}
SQUARE_TUNABLES = {
    "BM": (16, 32, 64),
    "BN": (64, 128, 256, 512),
    "BK": (4, 5, 7, 8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}


def _check_static_shared_memory(size: int) -> None:
    """Raise Unfit if tiles of ``size`` bytes exceed the limit of static shared memory."""
    if size > STATIC_SHARED_LIMIT:
        raise Unfit(f"the tiles take {size:,} bytes of shared memory, at most {STATIC_SHARED_LIMIT:,} are planned for")


def _tile_grid(problem: ConvProblem, tile: int, rows: int) -> Callable[[int], Grid]:
    """Return a function from images to a grid: per ``tile`` pixels, ``rows`` adjacent blocks of maps or channels."""
    pixels = prod(problem.conv_output_size)
    return lambda images: (ceil_div(images * pixels, tile) * rows, 1, 1)


def _im2col_workspace(problem: ConvProblem) -> tuple[Argument, ...]:
    """Return the workspace: the im2col matrix (C * K * K, images * pixels) and the product (M, images * pixels)."""
    pixels, dtype = prod(problem.conv_output_size), epilogue_dtype(problem.dtype)
    return (
        Argument("unrolled", dtype, per_image=problem.reduction_length * pixels),
        Argument("product", dtype, per_image=problem.maps * pixels),
    )


def _configure_cublas(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    workspace, pixels = _im2col_workspace(problem), prod(problem.conv_output_size)
    product = LibraryGemm(
        "w", "unrolled", "product", lambda images: (problem.maps, images * pixels, problem.reduction_length)
    )
    return LaunchConfig(
        type_defines(problem) | conv_size_defines(problem),
        (
            KernelLaunch(BLOCK, _tile_grid(problem, BLOCK, problem.channels), entry="conv_cublas_im2col"),
            product,
            KernelLaunch(BLOCK, _tile_grid(problem, BLOCK, problem.maps)),
        ),
        workspace=workspace,
        images_at_a_time=max_workspace_images(workspace, parameters["MIB"] << 20),
        # (C, K, K, M) → (M, C * K * K)
        packing=weight_reordering_packing(
            problem, problem.reduction_length * problem.maps, lambda w: w.reshape(-1, problem.maps).T
        ),
    )


def _configure_im2col_gemm(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tile, workspace = parameters["TILE"], _im2col_workspace(problem)
    _check_static_shared_memory(2 * tile**2 * ITEMSIZE[epilogue_dtype(problem.dtype)])
    return LaunchConfig(
        type_defines(problem) | conv_size_defines(problem) | {"TILE": tile},
        (
            KernelLaunch(BLOCK, _tile_grid(problem, BLOCK, problem.channels), entry="conv_im2col_gemm_unroll"),
            KernelLaunch(tile**2, _tile_grid(problem, tile, ceil_div(problem.maps, tile))),
            KernelLaunch(BLOCK, _tile_grid(problem, BLOCK, problem.maps), entry="conv_im2col_gemm_layout"),
        ),
        workspace=workspace,
        images_at_a_time=max_workspace_images(workspace, parameters["MIB"] << 20),
    )


def _largest_even_k_step(depth: int, most: int) -> int:
    """Return the largest k step, 8 to ``most`` terms, that divides sums of ``depth`` terms evenly; else up to 16."""
    return next((size for size in range(min(depth, most), 7, -1) if depth % size == 0), min(depth, 16))


def _implicit_gemm_defaults(problem: ConvProblem) -> dict[str, int]:
    # Of the values of BM with the fewest idle threads, the largest.
    block_maps = min((32, 24, 16, 12, 8, 4), key=lambda size: ceil_div(problem.maps, size) * size)
    step = _largest_even_k_step(problem.reduction_length, 50)
    return {"BM": block_maps, "BN": 64 if block_maps <= 8 else 32 if block_maps <= 16 else 16, "BK": step}


def _configure_implicit_gemm(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    bm, bn, bk = (parameters[name] for name in ("BM", "BN", "BK"))
    _check_static_shared_memory(bk * (bm + bn) * ITEMSIZE[epilogue_dtype(problem.dtype)])
    launch = KernelLaunch(bm * bn, _tile_grid(problem, bn, ceil_div(problem.maps, bm)))
    return LaunchConfig(type_defines(problem) | conv_size_defines(problem) | dict(parameters), (launch,))


# --- register tiles: from one output per thread to 8 x 8, step by step ----------------------------------------------


def _maps_per_block(problem: ConvProblem) -> int:
    return next((size for size in (16, 32) if problem.maps <= size), 64)


def _column_tile_defaults(problem: ConvProblem) -> dict[str, int]:
    maps = _maps_per_block(problem)
    return {
        "BM": maps,
        "BN": 2048 // maps,
        "BK": _largest_even_k_step(problem.reduction_length, 32),
        "TM": 8,
    }  # 256 threads


def _square_tile_defaults(problem: ConvProblem) -> dict[str, int]:
    maps = _maps_per_block(problem)
    # Cut a short sum into equal steps without padding if its length allows.
    step = next((size for size in (8, 7, 5, 6, 9) if problem.reduction_length % size == 0), 8)
    return {"BM": maps, "BN": 8192 // maps, "BK": step, "TM": 8, "TN": 8}  # 128 threads of 8 x 8 outputs


def _configure_scalar_tiles(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    """Return the configuration for register tiles of TM x TN outputs (TN is 1 if absent) with scalar loads."""
    bm, bn, bk, tm, tn = (parameters.get(name, 1) for name in SQUARE_TUNABLES)
    if bm % tm or bn % tn:
        raise Unfit("BM must be a multiple of TM, BN one of TN")
    threads = bm // tm * (bn // tn)
    if threads % 32:
        raise Unfit("a block of these tiles does not consist of whole warps")
    _check_static_shared_memory(bk * (bm + bn) * ITEMSIZE[epilogue_dtype(problem.dtype)])
    launch = KernelLaunch(threads, _tile_grid(problem, bn, ceil_div(problem.maps, bm)))
    return LaunchConfig(type_defines(problem) | conv_size_defines(problem) | dict(parameters), (launch,))


def _configure_vector_tiles(problem: ConvProblem, parameters: Parameters, stages: int) -> LaunchConfig:
    """Return the configuration for register tiles of TM x TN outputs, four-float loads and ``stages`` tile buffers."""
    bm, bn, bk, tm, tn = (parameters[name] for name in SQUARE_TUNABLES)
    if tm % 4 or tn % 4:
        raise Unfit("TM and TN must be multiples of four")
    if bm % tm or bn % tn:
        raise Unfit("BM must be a multiple of TM, BN one of TN")
    rows, columns = bm // tm, bn // tn  # of threads in a block
    threads, lanes = rows * columns, min(rows, 4)  # a warp is `lanes` rows of threads
    if rows % lanes or 32 % lanes or columns % (32 // lanes):
        raise Unfit("a block of these tiles does not consist of whole warps")
    apart = min(bn, threads)
    if bn % apart or threads % apart or bk % (threads // apart):
        raise Unfit("threads cannot share the loads of a tile out evenly")
    _check_static_shared_memory(stages * bk * (bm + bn) * ITEMSIZE["float32"])
    pixels = prod(problem.pooled_size) * problem.pool**2
    launch = KernelLaunch(threads, lambda images: (ceil_div(images * pixels, bn), ceil_div(problem.maps, bm), 1))
    return LaunchConfig(type_defines(problem) | conv_size_defines(problem) | dict(parameters), (launch,))


def _configure_pooled_tiles(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    config = _configure_vector_tiles(problem, parameters, stages=2)
    return LaunchConfig(config.defines | pooling_defines(problem), config.actions)


def _register_tiled_refusal_reason(problem: ConvProblem) -> str | None:
    if problem.pool not in (1, 2):
        return "fuses pooling windows of 2 x 2 only"
    # Constant memory holds 64 KB of tap offsets, four bytes each.
    return (
        "tap offsets of more than 16,384 products exceed constant memory" if problem.reduction_length > 16_384 else None
    )


# Columns: step, technique, system, configure, dtypes, since.
_row = partial(Variant, "conv", automatic=True)
_square = partial(Variant, "conv", tunables=SQUARE_TUNABLES, defaults=_square_tile_defaults)
ROWS: tuple[Variant, ...] = (
    Variant(
        "conv",
        0,
        "cublas",
        system="none (the yardstick)",
        configure=_configure_cublas,
        dtypes=("float32",),
        limits="the order of summation is cuBLAS's; needs a workspace of MIB",
        tunables=_WORKSPACE,
        defaults=lambda _: {"MIB": 256},
        needs_cublas=True,
    ),
    _row(
        8,
        "im2col_gemm",
        system="lenet5, k7, minidnn86",
        configure=_configure_im2col_gemm,
        dtypes=FLOATS,
        since="unrolled",
        limits="needs a workspace of MIB",
        tunables={"TILE": (8, 16, 32)} | _WORKSPACE,
        defaults=lambda _: {"TILE": 16, "MIB": 256},
    ),
    _row(
        9,
        "implicit_gemm",
        system="fa19, k7",
        configure=_configure_implicit_gemm,
        dtypes=STORED,
        since="im2col-gemm",
        limits="BM x BN at most 1,024",
        tunables={"BM": (4, 8, 12, 16, 24, 32), "BN": (16, 24, 32, 64), "BK": (8, 16, 25, 32, 49)},
        defaults=_implicit_gemm_defaults,
    ),
    Variant(
        "conv",
        10,
        "register_column",
        system="none",
        configure=_configure_scalar_tiles,
        dtypes=FLOATS,
        since="implicit-gemm",
        tunables=COLUMN_TUNABLES,
        defaults=_column_tile_defaults,
    ),
    _square(11, "register_square", "none", _configure_scalar_tiles, FLOATS, "register-column"),
    _square(12, "wide_loads", "none", partial(_configure_vector_tiles, stages=1), ("float32",), "register-square"),
    _square(
        13,
        "register_tiled",
        system="fa19, lenet5",
        configure=_configure_pooled_tiles,
        dtypes=("float32",),
        since="wide-loads",
        refuses=_register_tiled_refusal_reason,
        limits="C*K*K at most 16,384 (constant memory); pooling 2 x 2",
        pools=True,
        automatic=True,
    ),
)
