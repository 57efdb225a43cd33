"""Define the registry rows of the kernels for any two convolutions by warpgroups on Hopper; pack their filters."""

from dataclasses import replace
from functools import cache, partial

import numpy as np

from app.kernels.fused import any_pair
from app.kernels.fused.any_pair import (
    convolution_defines,
    image_source,
    packed_arguments,
    padded_image_words,
    scales_after_activation,
    window_fragments_size,
)
from app.kernels.fused.sparse_pair import sparse_pair_work
from app.kernels.problems import ConvPairProblem
from app.kernels.scaling import Arrays
from app.kernels.variant import (
    ONLY_HOPPER,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Variant,
    ceil_div,
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


def refusal_reason(problem: ConvPairProblem) -> str | None:
    """Return why the kernel cannot compute the problem; None if it can. Shared memory is not checked."""
    return any_pair.refusal_reason(problem) or _second_convolution(problem).refusal_reason()


def _second_convolution(problem: ConvPairProblem) -> WarpgroupConvolution:
    return WarpgroupConvolution.of_layer(problem.second, problem)


def _memory_layout(problem: ConvPairProblem, tiles: Tiles) -> tuple[int, FilterRing]:
    """Return the bytes of the maps between the layers (of one half if split), and the filters' layout. Raises Unfit."""
    first, second, resize = problem.first, _second_convolution(problem), problem.resize
    source = image_source(problem)
    tiles.check(second)
    high = first.pooled_size[0] + 2 * problem.second.padding
    maps = second.maps_bytes(high, tiles.chunks * tiles.rows)
    if resize is not None:  # they first hold the widened rows of the image
        maps = max(maps, ceil_div(2 * first.channels * source.height * first.width, 16 * second.parts) * 16)
    image = ceil_div(source.channels * source.height * source.width, 16) * 16
    others = 2 * problem.weight_parts * window_fragments_size(problem)
    others += ceil_div((3 if scales_after_activation(problem) else 2) * ceil_div(first.maps, 2) * 8, 16) * 16
    others += tiles.warpgroups * (ceil_div(4 * padded_image_words(problem), 16) * 16 + second.parts * maps + image + 16)
    return maps, FilterRing.choose(others, tiles.warpgroups * collected_result_bytes(problem.second), second)


@cache
def _best_tiles(problem: ConvPairProblem) -> tuple[Tiles, float]:
    """Return the fastest tiles, the smallest if none fits, and the second convolution's estimated clocks per image."""
    second = _second_convolution(problem)
    return fastest_tiles(
        lambda tiles: _memory_layout(problem, tiles)[1],
        lambda rows: [ceil_div(second.rows, rows)],
        partial(estimated_clocks, second),
    )


def _default_tiles(problem: ConvPairProblem) -> dict[str, int]:
    tiles, _ = _best_tiles(problem)
    return {"WARPGROUPS": tiles.warpgroups, "ROWS": tiles.rows}


def _sparse_is_faster(problem: ConvPairProblem, _: str) -> bool:
    dense = replace(problem, sparse=False)
    return beats_dense(_second_convolution(dense), _best_tiles(dense)[1], _best_tiles(problem)[1])


def _configure(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    """Return a launch configuration with one block per multiprocessor."""
    second, rows = _second_convolution(problem), parameters["ROWS"]
    tiles = Tiles(parameters["WARPGROUPS"], rows, ceil_div(second.rows, rows))
    maps, ring = _memory_layout(problem, tiles)
    defines = (
        convolution_defines(problem) | dict(parameters) | ring.defines() | {"CHUNKS": tiles.chunks, "MAPS_BYTES": maps}
    )
    takes = packed_arguments(problem, ring.filter_elements, second.padded_maps)
    launch = KernelLaunch(128 * tiles.warpgroups, lambda n: (n, 1, 1), shared_bytes=ring.shared_bytes, persistent=True)
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(pack_parameters, problem, ring)))


def pack_parameters(problem: ConvPairProblem, ring: FilterRing, arrays: Arrays) -> list[np.ndarray | None]:
    """Pack as ``any_pair.pack_parameters``, but filters2 in layout ``ring``, factors2, bias2 padded to tiles."""
    pack2 = partial(pack_filters, _second_convolution(problem), ring)
    *first, filters2, factors2, bias2 = any_pair.pack_parameters(problem, arrays, pack2)
    return [*first, filters2, pad_to_tiles(factors2), pad_to_tiles(bias2)]


_row = partial(
    wgmma_row,
    "conv_pair",
    configure=_configure,
    dtypes=("float16", "float16x2"),
    refuses=refusal_reason,
    tunables={"WARPGROUPS": tuple(MOST_SUMS), "ROWS": ROWS_OF_PIXELS},
    defaults=_default_tiles,
    pools=True,
    reads_host=True,
)
LIMITS = f"{ONLY_HOPPER}; bytes, two convolutions in a row that fill its tiles of 64 maps"
ROWS: tuple[Variant, ...] = (
    _row(
        step=6,
        technique="wgmma_any",
        since="mma-any",
        summary="any two convolutions as in step 0, the second by warpgroup tensor-core products",
        limits=LIMITS,
    ),
    _row(
        step=10,
        technique="wgmma_any_sparse",
        since="wgmma-any",
        summary="step 6, its second convolution with 2:4 sparse filters: half the tensor-core time",
        limits=f"{LIMITS}; 2:4 sparse second filters",
        sparse=True,
        work=sparse_pair_work,
        worthwhile=_sparse_is_faster,
    ),
)
