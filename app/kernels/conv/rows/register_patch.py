"""Define the registry rows of direct convolutions with a patch of outputs per thread; the last is fastest in fp32."""

from collections.abc import Iterable
from functools import cache, partial
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    MAX_GRID_Y,
    STATIC_SHARED_LIMIT,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    pooling_defines,
    type_defines,
    weight_reordering_packing,
)

Value = TypeVar("Value")
REGISTERS = 65_536  # per multiprocessor
MOST_SUMS = 96  # per thread
MOST_GROUPS = 8  # most groups of maps by default
PATCH_TUNABLES = {
    "TM": (4, 6, 8, 12, 16),
    "TR": (1, 2, 3, 4),
    "TC": (2, 4, 5, 6, 8, 9, 10),
    "GROUPS": (1, 8),  # most groups of maps that share the input tile of a block
    "THREADS": (96, 128, 192, 256),
    "CK": (1, 2, 4),
}


def vector_width(size: int) -> int:
    """Return the width in floats, 1, 2 or 4, of the widest load or store that divides ``size``."""
    return 4 if size % 4 == 0 else 2 if size % 2 == 0 else 1


def map_block_count(maps: int, each: int) -> int:
    """Return how many blocks of ``each`` maps the grid has along y. Raises Unfit for more than a grid can have."""
    count = ceil_div(maps, each)
    if count > MAX_GRID_Y:
        raise Unfit(f"{maps} maps need more than {MAX_GRID_Y:,} blocks of {each}")
    return count


def _input_row_floats(problem: ConvProblem, outputs: int, vector: int) -> int:
    """Return how many input floats a row of ``outputs`` results needs, rounded up to loads of ``vector`` floats."""
    return ceil_div((outputs - 1) * problem.stride + problem.kernel, vector) * vector


def _patch_cost(problem: ConvProblem, tm: int, tr: int, tc: int) -> float:
    """Return a product's estimated time, 1 or more, in patches of ``tm`` maps, ``tr`` rows and ``tc`` columns."""
    height, width = (size * problem.pool for size in problem.pooled_size)
    groups = min(ceil_div(problem.maps, tm), MOST_GROUPS)
    waste = ceil_div(problem.maps, tm * groups) * tm * groups / problem.maps
    waste *= ceil_div(height, tr) * tr / height * (ceil_div(width, tc) * tc / width)
    products = tm * tr * tc * problem.kernel
    vector = vector_width(tc * problem.stride)
    loads = tr * _input_row_floats(problem, tc, vector) / vector * (1.5 if vector > 1 else 1)
    loads += problem.kernel * tm / vector_width(tm)
    store = vector_width(tc) if width % vector_width(tc) == 0 else 1
    scattered = tc / store / problem.pool**2
    return waste * (1 + loads / products) + 4 * scattered / problem.reduction_length


def estimated_patch_time(problem: ConvProblem) -> float:
    """Return the estimated time of one image with the default patch, in multiply-adds at the CUDA cores' peak rate."""
    found = _patch_defaults(problem)
    pixels = prod(problem.pooled_size) * problem.pool**2
    cost = _patch_cost(problem, *(found[name] for name in ("TM", "TR", "TC")))
    return cost * problem.maps * problem.reduction_length * pixels


@cache
def _patch_defaults(problem: ConvProblem, heights: tuple[int, ...] = (1, 2, 3, 4)) -> dict[str, int]:
    """Return the parameters of the patch with the least estimated cost. heights: rows (TR) to try."""
    shapes: Iterable[tuple[int, int, int]] = product(PATCH_TUNABLES["TM"], heights, range(1, 11))
    fitting = [
        (_patch_cost(problem, tm, tr, tc), tm, tr, tc)
        for tm, tr, tc in shapes
        if tr % problem.pool == 0 and tc % problem.pool == 0 and 40 <= tm * tr * tc <= 80
    ]
    _, tm, tr, tc = min(fitting, default=(0, 1, problem.pool, problem.pool))
    found = {"TM": tm, "TR": tr, "TC": tc, "GROUPS": MOST_GROUPS, "THREADS": 128, "CK": 1}
    while found["THREADS"] > 1 and _configure_patch(problem, found).launches[0].shared_bytes > STATIC_SHARED_LIMIT:
        found["THREADS"] //= 2
    return found


def _drop_keys(values: dict[str, Value], *names: str) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name not in names}


def _configure_patch(
    problem: ConvProblem, parameters: Parameters, stages: int = 2, one_image: bool = False
) -> LaunchConfig:
    """Return the configuration of register patches. TR (rows) and CK (channels per stage) are 1 by default.

    stages: greatest number of stages in shared memory. one_image: a block covers one image and loads single inputs.
    """
    tm, tr, tc, most_groups, most_threads, ck = (parameters.get(name, 1) for name in PATCH_TUNABLES)
    groups = min(ceil_div(problem.maps, tm), most_groups)
    most = max(most_threads // groups, 1)  # patches per block
    if tr % problem.pool or tc % problem.pool:
        raise Unfit(f"a patch of {tr} x {tc} holds no whole pooling windows of {problem.pool} x {problem.pool}")
    if problem.channels % ck:
        raise Unfit(f"{problem.channels} channels cannot be staged {ck} at a time")
    if tm * tr * tc > MOST_SUMS:
        raise Unfit(f"{tm * tr * tc} sums do not fit in a thread's registers")
    height, width = problem.pooled_size
    rows, columns = ceil_div(height * problem.pool, tr), ceil_div(width * problem.pool, tc)
    # A block covers several images, whole rows of patches of an image, or a part of a row; bands have equal height.
    tile_c = min(columns, most)
    tile_r = min(rows, max(most // tile_c, 1))
    tile_r = ceil_div(rows, ceil_div(rows, tile_r))
    images = 1 if one_image else max(most // (rows * columns), 1)
    threads = ceil_div(images * tile_r * tile_c * groups, 32) * 32
    block_maps = tm * groups
    vector = 1 if one_image else vector_width(tc * problem.stride)
    in_rows = (tile_r * tr - 1) * problem.stride + problem.kernel
    pitch = _input_row_floats(problem, tile_c * tc, vector)
    inputs = images * ck * in_rows * pitch
    filters = ck * problem.kernel**2 * block_maps
    row = _input_row_floats(problem, tc, vector)
    stage = (inputs + row + 3) // 4 * 4 + (filters + 3) // 4 * 4
    shared = 4 * stage * (stages if problem.channels > ck else 1)
    registers = tm * tr * tc + tr * row + tm + 44
    constants = {"TM": tm, "TR": tr, "TC": tc, "GROUPS": groups, "CK": ck}
    tile = {"IMAGES": images, "TILE_R": tile_r, "TILE_C": tile_c}
    blocks = max(min(REGISTERS // (threads * registers), 2048 // threads, 16), 1)
    per_image = ceil_div(rows, tile_r) * ceil_div(columns, tile_c)
    map_blocks = map_block_count(problem.maps, block_maps)
    return LaunchConfig(
        type_defines(problem)
        | conv_size_defines(problem)
        | pooling_defines(problem)
        | constants
        | tile
        | {"MIN_BLOCKS": blocks},
        (KernelLaunch(threads, lambda n: (ceil_div(n, images) * per_image, map_blocks, 1), shared_bytes=shared),),
        packing=weight_reordering_packing(
            problem,
            map_blocks * block_maps * problem.reduction_length,
            lambda w: _pack_map_blocks(w, problem, block_maps),
        ),
    )


def _pack_map_blocks(weights: np.ndarray, problem: ConvProblem, block: int) -> np.ndarray:
    """Return filters (C, K, K, M) as (blocks, C * K * K, block); maps beyond the last are zeros."""
    flat = weights.reshape(problem.reduction_length, problem.maps)
    padded = np.pad(flat, ((0, 0), (0, -problem.maps % block)))
    return padded.reshape(problem.reduction_length, -1, block).transpose(1, 0, 2)


# Columns: step, technique, system, configure, dtypes, since.
_row = partial(Variant, "conv", tunables=PATCH_TUNABLES, defaults=_patch_defaults)
ROWS: tuple[Variant, ...] = (
    _row(
        16,
        "register_row",
        system="fa19, k7",
        configure=partial(_configure_patch, stages=1, one_image=True),
        dtypes=("float32",),
        since="unrolled",
        tunables=_drop_keys(PATCH_TUNABLES, "TR", "CK"),
        defaults=lambda problem: _drop_keys(_patch_defaults(problem, (1,)), "TR", "CK"),
    ),
    _row(
        17,
        "register_block",
        system="fa19, k7",
        configure=partial(_configure_patch, stages=1),
        dtypes=("float32",),
        since="register-row",
        tunables=_drop_keys(PATCH_TUNABLES, "CK"),
        defaults=lambda problem: _drop_keys(_patch_defaults(problem), "CK"),
    ),
    _row(18, "async_copies", "fa19, k7", _configure_patch, ("float32",), "register-block"),
    _row(
        19,
        "register_patch",
        system="fa19, k7",
        configure=_configure_patch,
        dtypes=("float32",),
        since="async-copies",
        limits="a patch must hold whole pooling windows",
        pools=True,
        automatic=True,
    ),
)
