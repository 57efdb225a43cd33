"""Registry rows of matrix products with register tiles: one element a thread becomes 4 x 4, step by step."""

from functools import partial

from app.base.precision import wide
from app.kernels.gemm.gemm import argmax_row, fixed_sizes, plain_row
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import LinearProblem
from app.kernels.variant import (
    FLOATS,
    STATIC_SHARED_LIMIT,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    tiles,
    types,
)

SIDE = 4  # of a thread's tile of elements
TILE_TUNABLES = {"BM": (16, 32, 64, 128), "BN": (16, 32, 64, 128), "BK": (8, 16, 32)}


def _column_defaults(problem: LinearProblem) -> dict[str, int]:
    return {"BM": 64, "BN": 16 if problem.outputs <= 16 else 32, "BK": 16, "TM": 8}


def _square_defaults(problem: LinearProblem) -> dict[str, int]:
    return {"BM": 64, "BN": 16, "BK": 16} if problem.outputs <= 16 else {"BM": 32, "BN": 32, "BK": 16}


def _launch(problem: LinearProblem, bm: int, bn: int, threads: int, shared_bytes: int) -> KernelLaunch:
    if threads % 32:
        raise Unfit("a block of these tiles does not consist of whole warps")
    if shared_bytes > STATIC_SHARED_LIMIT:
        raise Unfit(f"the tiles take {shared_bytes:,} bytes of shared memory, at most {STATIC_SHARED_LIMIT:,}")
    return KernelLaunch(threads, lambda images: (tiles(images, bm), tiles(problem.outputs, bn), 1))


def _scalar_tiles(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    """Configure a register tile of TM x 1, or of SIDE x SIDE without TM, whose elements are read one by one."""
    bm, bn, bk = (parameters[name] for name in TILE_TUNABLES)
    tm, tn = (parameters["TM"], 1) if "TM" in parameters else (SIDE, SIDE)
    if bm % tm or bn % tn:
        raise Unfit("a thread's tile does not divide the block's")
    shared = bk * (bm + 4 + bn) * ITEMSIZE[wide(problem.dtype)]
    launch = _launch(problem, bm, bn, bm // tm * (bn // tn), shared)
    return LaunchConfig(types(problem) | fixed_sizes(problem) | dict(parameters) | {"TM": tm, "TN": tn}, (launch,))


def _wide_tiles(problem: LinearProblem, parameters: Parameters, stages: int) -> LaunchConfig:
    """Configure a register tile of SIDE x SIDE that is read four floats at a time, from ``stages`` block tiles."""
    bm, bn, bk = (parameters[name] for name in TILE_TUNABLES)
    threads = bm * bn // SIDE**2
    if bm % SIDE or bn % SIDE or 128 % bn:
        raise Unfit("a block of these tiles does not consist of whole warps, each with whole rows")
    if not threads or bm * bk % threads or bk * bn % threads:
        raise Unfit("threads cannot share the loads of a tile out evenly")
    launch = _launch(problem, bm, bn, threads, stages * bk * (bm + 4 + bn) * ITEMSIZE["float32"])
    constants: dict[str, str | int] = {**parameters, "TM": SIDE, "TN": SIDE}
    return LaunchConfig(types(problem) | fixed_sizes(problem) | constants, (launch,))


def _with_argmax(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    if problem.argmax and problem.outputs > parameters["BN"]:
        raise Unfit("argmax needs a whole row of outputs in one block: BN is too small")
    config = _wide_tiles(problem, parameters, stages=2)
    return LaunchConfig(config.defines | {"ARGMAX": int(problem.argmax)}, config.actions)


_square = partial(plain_row, tunables=TILE_TUNABLES, defaults=_square_defaults)
GEMM_TILE_ROWS: tuple[Variant, ...] = (
    plain_row(
        3,
        "register_column",
        system="none",
        configure=_scalar_tiles,
        since="shared-tiled",
        dtypes=FLOATS,
        tunables=TILE_TUNABLES | {"TM": (2, 4, 8)},
        defaults=_column_defaults,
    ),
    _square(
        4,
        "register_square",
        system="none",
        configure=_scalar_tiles,
        since="register-column",
        dtypes=FLOATS,
    ),
    _square(
        5,
        "wide_loads",
        system="none",
        configure=partial(_wide_tiles, stages=1),
        since="register-square",
        dtypes=("float32",),
    ),
    argmax_row(
        6,
        "register_tiled",
        system="lenet5, k7",
        configure=_with_argmax,
        since="wide-loads",
        dtypes=("float32",),
        tunables=TILE_TUNABLES,
        defaults=_square_defaults,
    ),
)
