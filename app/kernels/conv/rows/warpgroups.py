"""Define the registry row of the kernel that computes one convolution of any size by warpgroups on Hopper."""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from app.base.precision import storage_dtype
from app.kernels.fused.scaling import float16_parts, scale_per_output
from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvProblem
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
    collected_result_bytes,
    estimated_clocks,
    fitting_tiles,
    pack_core_matrices,
    pad_to_tiles,
    size_read_by_pooling,
)

MOST_CHUNKS = 8


def _warpgroup_convolution(problem: ConvProblem) -> WarpgroupConvolution:
    return WarpgroupConvolution(
        problem.channels,
        problem.width + 2 * problem.padding,
        problem.maps,
        problem.kernel,
        problem.stride,
        *size_read_by_pooling(problem),
        problem.pool,
        problem.activation_parts,
        problem.weight_parts,
    )


def _refusal_reason(problem: ConvProblem) -> str | None:
    if problem.input_dtype != storage_dtype(problem.dtype):
        return f"reads {storage_dtype(problem.dtype)}"
    if problem.dtype == "float16x2" and not problem.bounded:
        return "splits only inputs that are known to be in float16's range"
    return _warpgroup_convolution(problem).refusal_reason()


def _place_filters(problem: ConvProblem, tiles: Tiles) -> tuple[int, FilterRing]:
    """Return the bytes of a band's input maps, for one float16 part, and the place of the filters. Raises Unfit."""
    convolution, rows = _warpgroup_convolution(problem), tiles.rows * tiles.chunks
    tiles.check(convolution)
    maps = convolution.maps_bytes(convolution.input_rows_for(rows), rows)
    whole = collected_result_bytes(problem) if rows >= convolution.rows else 0  # of bands, results lie apart
    others = tiles.warpgroups * (convolution.parts * maps + 16)
    return maps, FilterRing.choose(others, tiles.warpgroups * whole, convolution)


@cache
def _default_tiles(problem: ConvProblem) -> dict[str, int]:
    """Return the tiles with the least estimated time, or the smallest if none fits."""
    convolution = _warpgroup_convolution(problem)

    def chunks(rows: int) -> range:
        return range(1, min(ceil_div(convolution.rows, rows), MOST_CHUNKS) + 1)

    def clocks(found: tuple[Tiles, FilterRing]) -> float:
        """Estimate the clock cycles of an image. Neighbouring bands load their common rows twice."""
        rows = found[0].rows * found[0].chunks
        bands = ceil_div(convolution.rows, rows)
        again = bands * convolution.input_rows_for(rows) / convolution.input_rows_for(convolution.rows)
        return bands * estimated_clocks(convolution, *found) * again**0.5

    found = fitting_tiles(lambda tiles: _place_filters(problem, tiles)[1], chunks)
    tiles, _ = min(found, key=clocks, default=(Tiles(1, 8, 1), None))
    return {"WARPGROUPS": tiles.warpgroups, "ROWS": tiles.rows, "CHUNKS": tiles.chunks}


def _configure(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    convolution = _warpgroup_convolution(problem)
    tiles = Tiles(*(parameters[name] for name in ("WARPGROUPS", "ROWS", "CHUNKS")))
    maps, ring = _place_filters(problem, tiles)
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
        Argument("w", "float16", fixed=convolution.filter_elements),
        Argument("factors", "float32", fixed=convolution.padded_maps),
        Argument("bias", "float32", fixed=convolution.padded_maps, optional=not problem.bias),
    )
    launch = KernelLaunch(
        128 * tiles.warpgroups, lambda n: (n * bands, 1, 1), shared_bytes=ring.shared_bytes, persistent=True
    )
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(_pack_filters, problem)))


def _pack_filters(problem: ConvProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Pack (w, bias) as [core matrices of w, factors, bias]; each map is scaled by a power of two."""
    scaled, scales = scale_per_output(problem, arrays)
    scaled = scaled.reshape(problem.channels, problem.kernel, problem.kernel, problem.maps)
    return [pack_core_matrices(float16_parts(problem, scaled)), pad_to_tiles(1 / scales), pad_to_tiles(arrays[1])]


ROWS: tuple[Variant, ...] = (
    wgmma_row(
        "conv",
        21,
        "warpgroup",
        system="none of them",
        configure=_configure,
        dtypes=("float16", "float16x2"),
        since="tensor-core",
        refuses=_refusal_reason,
        limits=f"{ONLY_HOPPER}; features, maps and channels that fill its tiles, pooling of 2 x 2",
        tunables={"WARPGROUPS": tuple(MOST_SUMS), "ROWS": ROWS_OF_PIXELS, "CHUNKS": (1, 2, 3, 4, 6, 8)},
        defaults=_default_tiles,
        pools=True,
    ),
)
