"""Registry row of the kernel that computes any single convolution by warpgroups on Hopper, and its packing."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from app.base.precision import storage_dtype
from app.kernels.fused.scaling import float16_parts, scale_per_map
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
    SHARED,
    Convolution,
    FilterRing,
    Tiles,
    best_settings,
    collected_bytes,
    core_matrices,
    estimated_clocks,
    pad_to_tiles,
    used_size,
)

MOST_CHUNKS = 8


def _convolution(problem: ConvProblem) -> Convolution:
    return Convolution(
        problem.channels,
        problem.width + 2 * problem.padding,
        problem.maps,
        problem.kernel,
        problem.stride,
        *used_size(problem),
        problem.pool,
        problem.activation_parts,
        problem.weight_parts,
    )


def _refusal_reason(problem: ConvProblem) -> str | None:
    if problem.input_dtype != storage_dtype(problem.dtype):
        return f"reads {storage_dtype(problem.dtype)}"
    if problem.dtype == "float16x2" and not problem.bounded:
        return "splits only inputs that are known to be in float16's range"
    return _convolution(problem).refusal_reason()


def _fit(problem: ConvProblem, warpgroups: int, rows: int, chunks: int) -> tuple[Tiles, int, FilterRing]:
    """Return the tiles, the bytes of one part of a band's maps, and where the filters lie. Raises Unfit."""
    convolution = _convolution(problem)
    tiles = Tiles(warpgroups, rows, chunks)
    tiles.check(convolution)
    maps = convolution.maps_bytes(convolution.rows_in_memory(rows * chunks), rows * chunks)
    whole = collected_bytes(problem) if rows * chunks >= convolution.rows else 0  # of bands, results lie apart
    return tiles, maps, FilterRing.beside(warpgroups * (convolution.parts * maps + 16), warpgroups * whole, convolution)


def _settings(problem: ConvProblem) -> Iterator[tuple[float, dict[str, int]]]:
    """Yield all settings that fit, each with an estimate of its time for an image."""
    convolution = _convolution(problem)
    for warpgroups in MOST_SUMS:
        for rows in ROWS_OF_PIXELS:
            for chunks in range(1, min(ceil_div(convolution.rows, rows), MOST_CHUNKS) + 1):
                try:
                    tiles, _, ring = _fit(problem, warpgroups, rows, chunks)
                except Unfit:
                    continue
                if ring.shared_bytes <= SHARED:
                    bands = ceil_div(convolution.rows, rows * chunks)
                    clocks = bands * estimated_clocks(convolution, tiles, ring)
                    # Bands overlap: rows that two of them read are loaded twice.
                    again = (
                        bands * convolution.rows_in_memory(rows * chunks) / convolution.rows_in_memory(convolution.rows)
                    )
                    yield clocks * again**0.5, {"WARPGROUPS": warpgroups, "ROWS": rows, "CHUNKS": chunks}


def _defaults(problem: ConvProblem) -> dict[str, int]:
    return best_settings(_settings(problem), {"WARPGROUPS": 1, "ROWS": 8, "CHUNKS": 1})


def _configure(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    convolution = _convolution(problem)
    tiles, maps, ring = _fit(problem, *(parameters[name] for name in ("WARPGROUPS", "ROWS", "CHUNKS")))
    if parameters["CHUNKS"] > ceil_div(convolution.rows, parameters["ROWS"]):
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
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(_pack, problem)))


def _pack(problem: ConvProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Pack (w, bias) as [core matrices of w, factors, bias]; each map is scaled by a power of two."""
    scaled, scales = scale_per_map(problem, arrays)
    return [core_matrices(float16_parts(problem, scaled)), pad_to_tiles(1 / scales), pad_to_tiles(arrays[1])]


ROWS: tuple[Variant, ...] = (
    wgmma_row(
        "conv",
        21,
        "warpgroup",
        system="none of them",
        configure=_configure,
        dtypes=("float16", "float16x2"),
        since="tensor-core",
        taught=False,
        refuses=_refusal_reason,
        limits=f"{ONLY_HOPPER}; features, maps and channels that fill its tiles, pooling of 2 x 2",
        tunables={"WARPGROUPS": tuple(MOST_SUMS), "ROWS": ROWS_OF_PIXELS, "CHUNKS": (1, 2, 3, 4, 6, 8)},
        defaults=_defaults,
        pools=True,
    ),
)
