"""Registry rows of implicit GEMMs with register tiles: one output a thread becomes 8 x 8, step by step."""

from functools import partial
from math import prod

from app.base.precision import wide
from app.kernels.conv.rows.as_gemm import equal_steps, fits_static, tile_grid
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    FLOATS,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    conv_sizes,
    ladder_row,
    pooling,
    tiles,
    types,
)

COLUMN_TUNABLES = {"BM": (8, 16, 24, 32, 64), "BN": (32, 64, 128, 256), "BK": (8, 16, 25, 32), "TM": (4, 8)}
SQUARE_TUNABLES = {
    "BM": (16, 32, 64),
    "BN": (64, 128, 256, 512),
    "BK": (4, 5, 7, 8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}


def _block_maps(problem: ConvProblem) -> int:
    return next((size for size in (16, 32) if problem.maps <= size), 64)


def _column_defaults(problem: ConvProblem) -> dict[str, int]:
    maps = _block_maps(problem)
    return {"BM": maps, "BN": 2048 // maps, "BK": equal_steps(problem.depth, 32), "TM": 8}  # 256 threads


def _square_defaults(problem: ConvProblem) -> dict[str, int]:
    maps = _block_maps(problem)
    # Cut a short sum into equal steps without padding if its length allows.
    step = next((size for size in (8, 7, 5, 6, 9) if problem.depth % size == 0), 8)
    return {"BM": maps, "BN": 8192 // maps, "BK": step, "TM": 8, "TN": 8}  # 128 threads of 8 x 8 outputs


def _scalar_tiles(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    """Configure a register tile of TM x TN outputs, TN 1 where there is none, of which each is read by itself."""
    bm, bn, bk, tm, tn = (parameters.get(name, 1) for name in SQUARE_TUNABLES)
    if bm % tm or bn % tn:
        raise Unfit("BM must be a multiple of TM, BN one of TN")
    threads = bm // tm * (bn // tn)
    if threads % 32:
        raise Unfit("a block of these tiles does not consist of whole warps")
    fits_static(bk * (bm + bn) * ITEMSIZE[wide(problem.dtype)])
    launch = KernelLaunch(threads, tile_grid(problem, bn, tiles(problem.maps, bm)))
    return LaunchConfig(types(problem) | conv_sizes(problem) | dict(parameters), (launch,))


def _wide_tiles(problem: ConvProblem, parameters: Parameters, stages: int) -> LaunchConfig:
    """Configure a register tile of TM x TN outputs that is read four floats at a time, from ``stages`` block tiles."""
    bm, bn, bk, tm, tn = (parameters[name] for name in SQUARE_TUNABLES)
    if tm % 4 or tn % 4:
        raise Unfit("TM and TN must be multiples of four")
    if bm % tm or bn % tn:
        raise Unfit("BM must be a multiple of TM, BN one of TN")
    rows, columns = bm // tm, bn // tn  # rows and columns of threads
    threads, lanes = rows * columns, min(rows, 4)  # a warp is `lanes` rows of threads
    if rows % lanes or 32 % lanes or columns % (32 // lanes):
        raise Unfit("a block of these tiles does not consist of whole warps")
    apart = min(bn, threads)
    if bn % apart or threads % apart or bk % (threads // apart):
        raise Unfit("threads cannot share the loads of a tile out evenly")
    fits_static(stages * bk * (bm + bn) * ITEMSIZE["float32"])
    pixels = prod(problem.pooled) * problem.pool**2
    launch = KernelLaunch(threads, lambda images: (tiles(images * pixels, bn), tiles(problem.maps, bm), 1))
    return LaunchConfig(types(problem) | conv_sizes(problem) | dict(parameters), (launch,))


def _pooled(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    config = _wide_tiles(problem, parameters, stages=2)
    return LaunchConfig(config.defines | pooling(problem), config.actions)


def _register_tiled_refuses(problem: ConvProblem) -> str | None:
    if problem.pool not in (1, 2):
        return "fuses pooling windows of 2 x 2 only"
    # Tap offsets lie in constant memory: 64 KB of four bytes each.
    return "tap offsets of more than 16,384 products exceed constant memory" if problem.depth > 16_384 else None


_square = partial(ladder_row, "conv", dtypes=("float32",), tunables=SQUARE_TUNABLES, defaults=_square_defaults)
REGISTER_TILE_ROWS: tuple[Variant, ...] = (
    ladder_row(
        "conv",
        10,
        "register_column",
        system="none",
        configure=_scalar_tiles,
        since="implicit-gemm",
        dtypes=FLOATS,
        tunables=COLUMN_TUNABLES,
        defaults=_column_defaults,
    ),
    _square(
        11,
        "register_square",
        system="none",
        configure=_scalar_tiles,
        since="register-column",
        dtypes=FLOATS,
    ),
    _square(
        12,
        "wide_loads",
        system="none",
        configure=partial(_wide_tiles, stages=1),
        since="register-square",
    ),
    _square(
        13,
        "register_tiled",
        system="fa19, lenet5",
        configure=_pooled,
        since="wide-loads",
        refuses=_register_tiled_refuses,
        limits="C*K*K at most 16,384 (constant memory); pooling 2 x 2",
        pools=True,
        automatic=True,
    ),
)
