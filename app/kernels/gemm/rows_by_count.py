"""Define the registry rows of the matrix products for few images, and of the one with wide tiles for many."""

from functools import partial

import numpy as np

from app.kernels.gemm.gemm import (
    TILE_TUNABLES,
    argmax_limit_reason,
    argmax_refusal_reason,
    configure_split_sums,
    size_defines,
    sum_part_define,
    tile_grid,
)
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import LinearProblem
from app.kernels.variant import (
    STATIC_SHARED_LIMIT,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    result_defines,
    type_defines,
    weight_reordering_packing,
)

WARP = 32
CHUNK = 64  # terms of a sum per stage
STAGES_FLOATS = 4 * CHUNK * WARP  # few_rows: weights in shared memory, four stages
ROWS_MMA, COLUMNS_MMA = 8, 8  # few_rows_mma: rows per warp, columns per product
THREAD_ROWS, THREAD_COLUMNS = 4, 8  # wide_tiles: rows and columns per thread
# Clock cycles per term of the sum, estimated from times on an H100 (docs/fast-path.md, "Wide tiles in float32"): of a
# block alone, of a warp beside others, and of a block of register_tiled, with 32 rows and columns, beside others.
LONE_BLOCK_CLOCKS, WARP_CLOCKS, TILED_CLOCKS = 80, 15, 24
MULTIPROCESSORS, IMAGES = 132, 10_000  # the GPU and the batch that the estimate assumes
WORTHWHILE = 0.7  # greatest share of the time of register_tiled that is worthwhile


def _configure_few_rows(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    tm, blocks = parameters["TM"], ceil_div(problem.outputs, WARP)
    depth = ceil_div(problem.inputs, CHUNK) * CHUNK
    if (STAGES_FLOATS + 2 * tm * CHUNK) * ITEMSIZE["float32"] > STATIC_SHARED_LIMIT:
        raise Unfit(f"chunks of {tm} rows exceed 48 KB of shared memory")
    packing = weight_reordering_packing(problem, blocks * depth * WARP, partial(pack_lanes, problem))
    return _configure_warps(problem, dict(parameters), (tm, blocks), packing, "gemm_few_rows_finish")


def _configure_warps(
    problem: LinearProblem, constants: dict[str, int], grid: tuple[int, int], packing: Packing, finish: str
) -> LaunchConfig:
    """Return the configuration for blocks of one warp. If PART cuts long sums, a second kernel adds the parts.

    grid: images per block, and number of blocks along the outputs. finish: name of the second kernel.
    """
    rows, blocks = grid
    defines = type_defines(problem) | size_defines(problem) | constants | sum_part_define(problem, constants)
    defines |= result_defines(problem)
    sums = KernelLaunch(WARP, lambda images: (ceil_div(images, rows), blocks, 1))
    if defines["PART"] == problem.inputs:
        return LaunchConfig(defines, (sums,), packing=packing)
    return configure_split_sums(problem, defines, sums, finish, packing)


def pack_lanes(problem: LinearProblem, weights: np.ndarray) -> np.ndarray:
    """Pack (inputs, outputs) as (blocks of 32 outputs, inputs / 4, 32 outputs, 4 inputs), zero-padded on both axes."""
    beyond = -problem.inputs % CHUNK, -problem.outputs % WARP
    padded = np.pad(weights.reshape(problem.inputs, problem.outputs), ((0, beyond[0]), (0, beyond[1])))
    return padded.reshape(len(padded) // 4, 4, -1, WARP).transpose(2, 0, 3, 1)


def _configure_few_rows_mma(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    tiles = ceil_div(problem.outputs, COLUMNS_MMA) if problem.argmax else 1
    blocks = ceil_div(problem.outputs, COLUMNS_MMA * tiles)
    depth = ceil_div(problem.inputs, CHUNK) * CHUNK
    elements, pack = blocks * tiles * COLUMNS_MMA * depth, partial(pack_fragments, problem, tiles)
    packing = weight_reordering_packing(problem, elements, pack)
    constants = {**parameters, "NT": tiles}
    return _configure_warps(problem, constants, (ROWS_MMA, blocks), packing, "gemm_few_rows_mma_finish")


def pack_fragments(problem: LinearProblem, tiles: int, weights: np.ndarray) -> np.ndarray:
    """Pack (inputs, outputs), zero-padded on both axes, as mma_tf32's B: (blocks, inputs / 16, tiles, 32 lanes, 4).

    Lane 4 g + t has rows t, t + 4, t + 8 and t + 12 of column g.
    """
    beyond = -problem.inputs % CHUNK, -problem.outputs % (COLUMNS_MMA * tiles)
    padded = np.pad(weights.reshape(problem.inputs, problem.outputs), ((0, beyond[0]), (0, beyond[1])))
    return padded.reshape(len(padded) // 16, 4, 4, -1, tiles, COLUMNS_MMA).transpose(3, 0, 4, 5, 2, 1)


def _wide_tile_defaults(problem: LinearProblem) -> dict[str, int]:
    """Return the tile sizes that measured fastest, for inputs of bytes or of floats."""
    bm = 64 if problem.input_dtype == "uint8" else 80
    return {"BM": bm, "BN": min(ceil_div(problem.outputs, THREAD_COLUMNS) * THREAD_COLUMNS, 64), "BK": 16}


def _wide_tiles_are_worthwhile(problem: LinearProblem, _: str) -> bool:
    """Return whether wide tiles are estimated to take at most ``WORTHWHILE`` of the time of ``register_tiled``."""
    bm, bn, _bk = _wide_tile_defaults(problem).values()
    warps = ceil_div(bm // THREAD_ROWS * (bn // THREAD_COLUMNS), WARP)

    def clocks(rows: int, columns: int, block: int) -> float:
        blocks = ceil_div(IMAGES, rows) * ceil_div(problem.outputs, columns)
        return max(LONE_BLOCK_CLOCKS, blocks / MULTIPROCESSORS * block)

    return clocks(bm, bn, warps * WARP_CLOCKS) <= WORTHWHILE * clocks(32, 32, TILED_CLOCKS)


def _configure_wide_tiles(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    bm, bn, bk = (parameters[name] for name in TILE_TUNABLES)
    if bm % THREAD_ROWS or bn % THREAD_COLUMNS or bk % 4:
        raise Unfit("a block of these tiles does not consist of whole tiles of 4 x 8, four terms at a time")
    if 2 * bk * (bm + 4 + bn) * ITEMSIZE["float32"] > STATIC_SHARED_LIMIT:
        raise Unfit("the two stages exceed 48 KB of shared memory")
    threads = ceil_div(bm // THREAD_ROWS * (bn // THREAD_COLUMNS), WARP) * WARP
    launch = KernelLaunch(threads, tile_grid(problem, bm, bn))
    defines = type_defines(problem) | size_defines(problem) | dict(parameters) | sum_part_define(problem, parameters)
    return LaunchConfig(defines, (launch,))


ROWS: tuple[Variant, ...] = (
    Variant(
        "gemm",
        10,
        "few_rows",
        system="none",
        configure=_configure_few_rows,
        dtypes=("float32",),
        since="register-tiled",
        refuses=argmax_limit_reason,
        limits="for few images: where `auto` chooses a kernel for many, the plan has it beside that",
        tunables={"TM": (1, 2, 4)},
        defaults=lambda _: {"TM": 2},
        taught=False,
    ),
    Variant(
        "gemm",
        11,
        "wide_tiles",
        system="none",
        configure=_configure_wide_tiles,
        dtypes=("float32",),
        since="register-tiled",
        refuses=argmax_refusal_reason,
        limits="no argmax",
        tunables={"BM": (64, 80, 128), "BN": (32, 64, 128), "BK": (16, 32)},
        defaults=_wide_tile_defaults,
        automatic=True,
        worthwhile=_wide_tiles_are_worthwhile,
        taught=False,
    ),
    Variant(
        "gemm",
        12,
        "few_rows_mma",
        system="none",
        configure=_configure_few_rows_mma,
        dtypes=("tfloat32",),
        since="few-rows",
        refuses=argmax_limit_reason,
        limits="for few images, as few-rows",
        min_arch=80,
        instructions="mma",
        taught=False,
    ),
)
