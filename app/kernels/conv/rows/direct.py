"""Define the registry rows of direct convolutions: each thread sums whole windows in registers."""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from app.base.precision import epilogue_dtype, storage_dtype
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    BLOCK,
    FLOATS,
    MAX_GRID_Y,
    STATIC_SHARED_LIMIT,
    STORED,
    Action,
    ConstantCopy,
    Grid,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    type_defines,
    weight_reordering_packing,
)

TILES = (8, 16, 24, 32)
CONSTANT_BYTES = 64 << 10
MAPS_LIMIT = f"at most {MAX_GRID_Y:,} maps (grid y)"
CONSTANT_LIMIT = "one map's filters at most 64 KB (constant memory)"


def _padding_define(problem: ConvProblem) -> dict[str, str | int]:
    """Return the compile-time constant PADDING, which kernels with run-time sizes get, too: 0 removes border checks."""
    return {"PADDING": problem.padding}


def _map_count_refusal_reason(problem: ConvProblem) -> str | None:
    return f"takes at most {MAX_GRID_Y:,} maps, the grid's limit" if problem.maps > MAX_GRID_Y else None


# --- grids and sizes: the outputs that a block covers -----------------------------------------------------------------


def _pixel_grid(problem: ConvProblem, maps: int) -> Callable[[int], Grid]:
    """Return a function from images to a grid: a thread per output pixel along x, ``maps`` blocks along y."""
    return lambda images: (ceil_div(images * prod(problem.conv_output_size), BLOCK), maps, 1)


def _tile_count(problem: ConvProblem, tile: int) -> int:
    """Return the number of tiles that cover one output map."""
    return prod(ceil_div(size, tile) for size in problem.conv_output_size)


def _tile_grid(problem: ConvProblem, tile: int, maps: int) -> Callable[[int], Grid]:
    """Return a function from images to a grid: a block per tile along x, ``maps`` blocks along y."""
    return lambda images: (images * _tile_count(problem, tile), maps, 1)


def _tile_bytes(problem: ConvProblem, tile: int) -> int:
    """Return the shared memory, in bytes, of one channel's input for a tile of ``tile`` x ``tile`` outputs."""
    return ((tile - 1) * problem.stride + problem.kernel) ** 2 * ITEMSIZE[epilogue_dtype(problem.dtype)]


def _filter_bytes(problem: ConvProblem) -> int:
    """Return the bytes of shared memory for one channel's filter."""
    return problem.kernel**2 * ITEMSIZE[epilogue_dtype(problem.dtype)]


def _default_tile(problem: ConvProblem) -> dict[str, int]:
    """Return the tile with the fewest idle threads; of equal ones the largest, whose halo is relatively smallest."""
    fitting = [tile for tile in TILES if _tile_bytes(problem, tile) + _filter_bytes(problem) <= STATIC_SHARED_LIMIT]
    return {"TILE": min(fitting[::-1] or TILES[:1], key=lambda tile: _tile_count(problem, tile) * tile**2)}


def _check_tile_size(parameters: Parameters) -> int:
    tile = parameters["TILE"]
    if tile % 8:
        raise Unfit(f"TILE must be a multiple of 8, so that TILE * TILE threads are whole warps, not {tile}")
    return tile


# --- filters in constant memory -------------------------------------------------------------------------------------


def _pack_filters(w: np.ndarray, together: int) -> np.ndarray:
    """Pack filters (C, K, K, M) as (M / together, C, K, K, together), zero-padded; ``together`` maps form an entry."""
    padded = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, -w.shape[3] % together)))
    return np.moveaxis(padded.reshape(*w.shape[:3], -1, together), 3, 0)


def _configure_constant_slices(
    problem: ConvProblem,
    defines: dict[str, str | int],
    threads: int,
    grid: Callable[[int], Callable[[int], Grid]],
    scalars: tuple[int, ...] = (),
    shared_bytes: int = 0,
    together: int = 1,
) -> LaunchConfig:
    """Return the configuration of a kernel that reads its filters from constant memory, slice by slice.

    Each slice is copied, then the kernel is launched. The slices are as few as possible and of nearly equal size.
    together: number of maps (1 or 2) whose filters form one entry. grid: number of entries → function from images to
    grid. scalars: arguments of each launch, before the index of the slice's first entry.
    """
    entry = problem.reduction_length * together
    entry_bytes = entry * ITEMSIZE[storage_dtype(problem.dtype)]
    count = ceil_div(problem.maps, together)
    fitting = CONSTANT_BYTES // entry_bytes
    if not fitting:
        maps = "one map" if together == 1 else "two maps"
        raise Unfit(f"the filters of {maps} take {entry_bytes:,} bytes, constant memory has {CONSTANT_BYTES:,}")
    size = ceil_div(count, ceil_div(count, fitting))
    actions: list[Action] = []
    for first in range(0, count, size):
        taken = min(size, count - first)
        copy = ConstantCopy("filters", first * entry, taken * entry)
        actions += copy, KernelLaunch(threads, grid(taken), "", (*scalars, first), shared_bytes)
    packing = weight_reordering_packing(problem, entry * count, lambda w: _pack_filters(w, together))
    return LaunchConfig(defines, tuple(actions), packing=packing)


# --- configurations -------------------------------------------------------------------------------------------------


def _configure_image_loop(problem: ConvProblem, _: Parameters) -> LaunchConfig:
    pixels = ceil_div(prod(problem.conv_output_size), BLOCK)
    launch = KernelLaunch(BLOCK, lambda _: (pixels, problem.maps, 1), scalars=problem.sizes)
    return LaunchConfig(type_defines(problem) | _padding_define(problem), (launch,))


def _configure_direct(problem: ConvProblem, _: Parameters) -> LaunchConfig:
    launch = KernelLaunch(BLOCK, _pixel_grid(problem, problem.maps), scalars=problem.sizes)
    return LaunchConfig(type_defines(problem) | _padding_define(problem), (launch,))


def _configure_shared_tile(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tile = _check_tile_size(parameters)
    launch = KernelLaunch(
        tile**2,
        _tile_grid(problem, tile, problem.maps),
        scalars=(*problem.sizes, tile),
        shared_bytes=_tile_bytes(problem, tile) + _filter_bytes(problem),
    )
    return LaunchConfig(type_defines(problem) | _padding_define(problem), (launch,))


def _configure_constant_filters(problem: ConvProblem, _: Parameters) -> LaunchConfig:
    defines = type_defines(problem) | _padding_define(problem)
    return _configure_constant_slices(problem, defines, BLOCK, partial(_pixel_grid, problem), problem.sizes)


def _configure_shared_constant(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tile = _check_tile_size(parameters)
    grid, scalars = partial(_tile_grid, problem, tile), (*problem.sizes, tile)
    defines = type_defines(problem) | _padding_define(problem)
    return _configure_constant_slices(problem, defines, tile**2, grid, scalars, _tile_bytes(problem, tile))


def _configure_specialised(problem: ConvProblem, parameters: Parameters, together: int = 1) -> LaunchConfig:
    tile = _check_tile_size(parameters)
    defines = type_defines(problem) | conv_size_defines(problem) | {"TILE": tile}
    grid = partial(_tile_grid, problem, tile)
    return _configure_constant_slices(problem, defines, tile**2, grid, (), _tile_bytes(problem, tile), together)


# By the memory that holds the filters. Columns: step, technique, system, configure, dtypes, since.
_in_memory = partial(Variant, "conv", refuses=_map_count_refusal_reason, limits=MAPS_LIMIT, automatic=True)
_in_memory_tiled = partial(_in_memory, tunables={"TILE": TILES}, defaults=_default_tile)
_in_constants = partial(Variant, "conv", limits=CONSTANT_LIMIT, automatic=True)
_in_constants_tiled = partial(_in_constants, tunables={"TILE": TILES}, defaults=_default_tile)
ROWS: tuple[Variant, ...] = (
    _in_memory(1, "image_loop", "fa19", _configure_image_loop, STORED),
    _in_memory(2, "direct", "lenet5, fa19, minidnn86", _configure_direct, STORED, "image-loop"),
    _in_memory_tiled(3, "shared_tile", "lenet5, fa19, k7", _configure_shared_tile, STORED, "direct"),
    _in_constants(4, "constant", "fa19, lenet5", _configure_constant_filters, FLOATS, "direct"),
    _in_constants_tiled(5, "shared_constant", "k7, fa19", _configure_shared_constant, FLOATS, "shared-tile"),
    _in_constants_tiled(6, "specialised", "fa19", _configure_specialised, FLOATS, "shared-constant"),
    _in_constants_tiled(7, "unrolled", "minidnn86, fa19", _configure_specialised, FLOATS, "specialised"),
    _in_constants_tiled(
        14,
        "half2",
        system="minidnn86",
        configure=partial(_configure_specialised, together=2),
        dtypes=("float16",),
        since="unrolled",
        limits="two maps' filters at most 64 KB (constant memory)",
        instructions="hfma2",
    ),
)
