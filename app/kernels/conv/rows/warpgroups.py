"""Define the registry rows of the kernels that compute one convolution of any size by warpgroups on Hopper."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from app.base.precision import storage_dtype
from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvProblem
from app.kernels.scaling import float16_parts, scale_per_output
from app.kernels.variant import (
    ONLY_HOPPER,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    pooling_defines,
    type_defines,
    wgmma_row,
)
from app.kernels.warpgroup_convolution import (
    MOST_SUMS,
    ROWS_OF_PIXELS,
    FilterRing,
    Tiles,
    WarpgroupConvolution,
    beats_dense,
    collected_result_bytes,
    estimated_clocks,
    fastest_tiles,
)
from app.kernels.warpgroup_filters import pack_filters, pad_to_tiles

MOST_CHUNKS = 8


def _warpgroup_convolution(problem: ConvProblem) -> WarpgroupConvolution:
    return WarpgroupConvolution.of_layer(problem, problem)


def _refusal_reason(problem: ConvProblem) -> str | None:
    if problem.input_dtype != storage_dtype(problem.dtype):
        return f"reads {storage_dtype(problem.dtype)}"
    if problem.dtype == "float16x2" and not problem.bounded:
        return "splits only inputs that are known to be in float16's range"
    return _warpgroup_convolution(problem).refusal_reason()


def _memory_layout(problem: ConvProblem, tiles: Tiles) -> tuple[int, FilterRing]:
    """Return the bytes of the input for a band of tiles (one half if split), and the filters' layout. Raises Unfit."""
    convolution, rows = _warpgroup_convolution(problem), tiles.rows * tiles.chunks
    tiles.check(convolution)
    maps = convolution.maps_bytes(convolution.input_rows_for(rows), rows)
    whole = collected_result_bytes(problem) if rows >= convolution.rows else 0  # a band's results are not contiguous
    others = tiles.warpgroups * (convolution.parts * maps + 16)
    return maps, FilterRing.choose(others, tiles.warpgroups * whole, convolution)


@cache
def _best_tiles(problem: ConvProblem) -> tuple[Tiles, float]:
    """Return the tiles with the least estimated time, and this time in clock cycles; the smallest ones if none fits."""
    convolution = _warpgroup_convolution(problem)

    def chunks(rows: int) -> range:
        return range(1, min(ceil_div(convolution.rows, rows), MOST_CHUNKS) + 1)

    def clocks(tiles: Tiles, ring: FilterRing) -> float:
        """Estimate an image's clock cycles; rows that two bands read are loaded twice. ring: layout of filters."""
        rows = tiles.rows * tiles.chunks
        bands = ceil_div(convolution.rows, rows)
        again = bands * convolution.input_rows_for(rows) / convolution.input_rows_for(convolution.rows)
        return bands * estimated_clocks(convolution, tiles, ring) * again**0.5

    return fastest_tiles(lambda tiles: _memory_layout(problem, tiles)[1], chunks, clocks)


def _default_tiles(problem: ConvProblem) -> dict[str, int]:
    tiles, _ = _best_tiles(problem)
    return {"WARPGROUPS": tiles.warpgroups, "ROWS": tiles.rows, "CHUNKS": tiles.chunks}


def _sparse_is_faster(problem: ConvProblem, _: str) -> bool:
    dense = replace(problem, sparse=False)
    return beats_dense(_warpgroup_convolution(dense), _best_tiles(dense)[1], _best_tiles(problem)[1])


def _configure(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    convolution = _warpgroup_convolution(problem)
    tiles = Tiles(*(parameters[name] for name in ("WARPGROUPS", "ROWS", "CHUNKS")))
    maps, ring = _memory_layout(problem, tiles)
    if tiles.chunks > ceil_div(convolution.rows, tiles.rows):
        raise Unfit("an image has fewer tiles")
    defines = type_defines(problem) | conv_size_defines(problem) | pooling_defines(problem) | dict(parameters)
    defines |= ring.defines() | {
        "MAPS_BYTES": maps,
        "PARTS": convolution.parts,
        "WEIGHT_PARTS": convolution.weight_parts,
    }
    bands = ceil_div(convolution.rows, tiles.rows * tiles.chunks)
    takes = (
        Argument("w", "float16", fixed=ring.filter_elements),
        Argument("factors", "float32", fixed=convolution.padded_maps),
        Argument("bias", "float32", fixed=convolution.padded_maps, optional=not problem.bias),
    )
    launch = KernelLaunch(
        128 * tiles.warpgroups, lambda n: (n * bands, 1, 1), shared_bytes=ring.shared_bytes, persistent=True
    )
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(_pack_parameters, problem, ring)))


def _pack_parameters(
    problem: ConvProblem, ring: FilterRing, arrays: Sequence[np.ndarray | None]
) -> list[np.ndarray | None]:
    """Pack (w, bias) as [filters ÷ factors, factors, bias]; factors are powers of two. ring: layout of the filters."""
    scaled, scales = scale_per_output(problem, arrays)
    scaled = scaled.reshape(problem.channels, problem.kernel, problem.kernel, problem.maps)
    filters = pack_filters(_warpgroup_convolution(problem), ring, float16_parts(problem, scaled))
    return [filters, pad_to_tiles(1 / scales), pad_to_tiles(arrays[1])]


_row = partial(
    wgmma_row,
    "conv",
    configure=_configure,
    dtypes=("float16", "float16x2"),
    refuses=_refusal_reason,
    tunables={"WARPGROUPS": tuple(MOST_SUMS), "ROWS": ROWS_OF_PIXELS, "CHUNKS": (1, 2, 3, 4, 6, 8)},
    defaults=_default_tiles,
    pools=True,
)
LIMITS = f"{ONLY_HOPPER}; features, maps and channels that fill its tiles, pooling of 2 x 2"
ROWS: tuple[Variant, ...] = (
    _row(step=21, technique="warpgroup", since="tensor-core", limits=LIMITS),
    _row(
        step=22,
        technique="warpgroup_sparse",
        since="warpgroup",
        limits=f"{LIMITS}; 2:4 sparse filters",
        sparse=True,
        worthwhile=_sparse_is_faster,
        work=lambda _: 1 / 2,
    ),
)
