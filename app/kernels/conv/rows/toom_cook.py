"""Define the row of the Toom-Cook convolution, which needs fewer multiplications, and pack its filters."""

from itertools import product

import numpy as np

from app.kernels.conv.rows.interpolation import (
    OUTPUTS,
    POINTS,
    cpp_initialiser,
    error_bound,
    toom_cook_matrices,
    transformed_filters,
)
from app.kernels.conv.rows.register_patch import vector_width
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

DEFAULT_SUMS = 64
MOST_SUMS = 128  # per thread
MOST_THREADS = 1024  # per block
TUNABLES = {
    "TM": (4, 8, 16),
    "TR": (4, 6, 8, 12),
    "GROUPS": (4, 8),  # most groups of maps that share a block's transformed inputs
    "THREADS": (96, 192, 384),
    "CK": (1, 2, 4, 8),
    "WARPS": (8, 12, 16, 20),  # per multiprocessor: the fewer, the more registers each thread may take
}


def _refusal_reason(problem: ConvProblem) -> str | None:
    """Return why no parameters suit the problem, or None: outputs computed together must share pixels."""
    if problem.stride != 1:
        return f"computes with stride 1 alone, not {problem.stride}"
    if problem.kernel not in POINTS:
        return f"has points for filters of at most {max(POINTS)} x {max(POINTS)}, not {problem.kernel}"
    return None


def _default_parameters(problem: ConvProblem) -> dict[str, int]:
    """Return the tile of sums with the least estimated cost (idle threads, loads per product) that fits."""
    height = problem.pooled_size[0] * problem.pool

    def cost(tm: int, tr: int) -> float:
        maps = tm * min(ceil_div(problem.maps, tm), TUNABLES["GROUPS"][-1])
        waste = ceil_div(problem.maps, maps) * maps / problem.maps * (ceil_div(height, tr) * tr / height)
        vector, products = vector_width(tr), tm * tr * problem.kernel
        loads = (tr + problem.kernel - 1) / vector * (1.5 if vector > 1 else 1) + problem.kernel * tm / vector_width(tm)
        return waste * (1 + loads / products)

    shapes = product(TUNABLES["TM"], range(problem.pool, max(problem.pool, 16) + 1, problem.pool))
    fitting = [(cost(tm, tr), tm, tr) for tm, tr in shapes if tm * tr <= DEFAULT_SUMS]
    _, tm, tr = min(fitting, default=(0, 1, problem.pool))
    found = {"TM": tm, "TR": tr, "GROUPS": TUNABLES["GROUPS"][-1], "THREADS": 96, "WARPS": 16}
    found["CK"] = max(size for size in (1, 2, 4) if problem.channels % size == 0)
    for name in ("CK", "GROUPS", "THREADS"):
        while found[name] > 1 and not _fits_block_limits(problem, found):
            found[name] //= 2
    return found


def _fits_block_limits(problem: ConvProblem, parameters: Parameters) -> bool:
    (launch,) = _configure_toom_cook(problem, parameters).launches
    return launch.shared_bytes <= STATIC_SHARED_LIMIT and launch.threads <= MOST_THREADS


def _block_tile(problem: ConvProblem, tr: int, most: int) -> tuple[int, int, int]:
    """Return the images, bands of TR rows and pairs of columns of a block; their product is about ``most``."""
    height, width = (size * problem.pool for size in problem.pooled_size)
    together = problem.pool if problem.pool % 2 else problem.pool // 2  # fewest pairs of whole pooling windows
    bands, columns = ceil_div(height, tr), ceil_div(width, OUTPUTS * together)
    tile_c = min(columns, max(most // together, 1))
    tile_c = ceil_div(columns, ceil_div(columns, tile_c)) * together
    tile_r = min(bands, max(most // tile_c, 1))
    tile_r = ceil_div(bands, ceil_div(bands, tile_r))
    return max(most // (bands * columns * together), 1), tile_r, tile_c


def _configure_toom_cook(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tm, tr, most_groups, most_threads, ck, warps = (parameters[name] for name in TUNABLES)
    if tr % problem.pool:
        raise Unfit(f"a column of {tr} rows holds no whole pooling windows of {problem.pool} rows")
    if problem.channels % ck:
        raise Unfit(f"{problem.channels} channels cannot be staged {ck} at a time")
    if tm * tr > MOST_SUMS:
        raise Unfit(f"{tm * tr} sums do not fit in a thread's registers")
    kernel, points = problem.kernel, problem.kernel + 1
    groups = min(ceil_div(problem.maps, tm), most_groups)
    block_maps = tm * groups
    map_blocks = ceil_div(problem.maps, block_maps)
    if map_blocks > MAX_GRID_Y:
        raise Unfit(f"{problem.maps} maps need more than {MAX_GRID_Y:,} blocks of {block_maps}")
    images, tile_r, tile_c = _block_tile(problem, tr, max(most_threads // (points * groups), 1))
    columns = images * tile_r * tile_c
    threads = ceil_div(points * groups * columns, 32) * 32
    # As in the kernel: the inputs at the points and the filters of a stage, and the exchange of sums in their place.
    vector = vector_width(tr)
    pitch = ceil_div(tile_r * tr + kernel - 1, vector) * vector
    pitch += vector * (pitch % (2 * vector) == 0)
    inputs, filters = ck * points * images * tile_c * pitch, ck * points * kernel * block_maps
    stages = (ceil_div(inputs, 4) + ceil_div(filters, 4)) * 16 * (2 if problem.channels > ck else 1)
    exchange = 4 * points * groups * columns * tr  # bytes for a map of each thread
    at_once = max((maps for maps in range(1, tm + 1) if tm % maps == 0 and maps * exchange <= stages), default=1)
    shared = max(stages, at_once * exchange)
    blocks = max(warps * 32 // threads, 1)
    height, width = (size * problem.pool for size in problem.pooled_size)
    per_image = ceil_div(height, tile_r * tr) * ceil_div(width, tile_c * OUTPUTS)
    to_inputs, _, to_outputs = toom_cook_matrices(kernel)
    matrices: dict[str, str | int] = {
        "INPUT_TRANSFORM": cpp_initialiser(to_inputs),
        "OUTPUT_TRANSFORM": cpp_initialiser(to_outputs),
    }
    tile: dict[str, str | int] = {"TM": tm, "TR": tr, "GROUPS": groups, "CK": ck, "IMAGES": images}
    tile |= {"TILE_R": tile_r, "TILE_C": tile_c, "AT_ONCE": at_once, "MIN_BLOCKS": blocks}
    return LaunchConfig(
        type_defines(problem) | conv_size_defines(problem) | pooling_defines(problem) | matrices | tile,
        (KernelLaunch(threads, lambda n: (ceil_div(n, images) * per_image, map_blocks, 1), shared_bytes=shared),),
        packing=weight_reordering_packing(
            problem,
            map_blocks * block_maps * problem.channels * points * kernel,
            lambda w: _pack_transformed_filters(w, problem, block_maps),
        ),
    )


def _pack_transformed_filters(weights: np.ndarray, problem: ConvProblem, block: int) -> np.ndarray:
    """Return filters (C, K, K, M) as (blocks, C, K + 1 points, K rows, block), transformed and zero-padded."""
    kernel = problem.kernel
    values = transformed_filters(weights.reshape(problem.channels, kernel, kernel, problem.maps))
    padded = np.pad(values, ((0, 0), (0, 0), (0, 0), (0, -problem.maps % block)))
    return padded.reshape(-1, padded.shape[-1] // block, block).transpose(1, 0, 2)


ROWS: tuple[Variant, ...] = (
    Variant(
        "conv",
        20,
        "toom_cook",
        system="none of them",
        configure=_configure_toom_cook,
        dtypes=("float32",),
        since="register-patch",
        refuses=_refusal_reason,
        limits="stride 1 and filters of at most 7 x 7; a column must hold whole pooling windows",
        pools=True,
        tunables=TUNABLES,
        defaults=_default_parameters,
        own_error=error_bound,
        work=lambda problem: (problem.kernel + 1) / (OUTPUTS * problem.kernel),  # K + 1 products of 2 K
    ),
)
