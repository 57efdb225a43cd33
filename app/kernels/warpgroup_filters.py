"""Pack filters for ``include/warpgroup_convolution.cuh``: dense as core matrices, 2:4 sparse with metadata."""

import numpy as np

from app.kernels.fused.sparse_pair import TERMS, compressed_filters, kept_positions, metadata_words
from app.kernels.variant import ceil_div
from app.kernels.warpgroup_convolution import TILE, FilterRing, WarpgroupConvolution


def pack_core_matrices(parts: list[np.ndarray]) -> np.ndarray:
    """Pack filters as wgmma's operand A; return a flat array in which zeros pad channels and maps.

    parts: the float16 filters, or their high and low halves, each (C, …, M). Order of the result, slowest index first:
    (tiles of 64 maps, taps, parts, planes of 8 channels, 8 groups of maps, 8 maps, 8 channels).
    """
    channels, *_, maps = parts[0].shape
    planes, tiles = 2 * ceil_div(channels, 16), ceil_div(maps, TILE)
    stacked = np.stack(parts).reshape(len(parts), channels, -1, maps)
    padded = np.zeros((len(parts), planes * 8, stacked.shape[2], tiles * TILE), parts[0].dtype)
    padded[:, :channels, :, :maps] = stacked
    axes = padded.reshape(len(parts), planes, 8, -1, tiles, 8, 8)
    return np.ascontiguousarray(axes.transpose(4, 3, 0, 1, 5, 6, 2)).reshape(-1)


def pack_filters(convolution: WarpgroupConvolution, ring: FilterRing, parts: list[np.ndarray]) -> np.ndarray:
    """Pack filters in stages of ``ring``, and metadata if sparse. parts: filters or their halves, (C, K, K, M) each."""
    if not convolution.sparse:
        return pack_core_matrices(parts)
    (filters,) = parts
    run, tiles = convolution.run_steps, convolution.padded_maps // TILE
    planes = np.pad(filters, ((0, -len(filters) % 8), (0, 0), (0, 0), (0, -filters.shape[-1] % TILE)))
    # Each column of taps has its rows and their channels one after another: (columns, rows x channels, maps).
    columns = planes.transpose(2, 1, 0, 3).reshape(convolution.kernel, -1, planes.shape[-1])
    columns = np.pad(columns, ((0, 0), (0, run * TERMS - columns.shape[1]), (0, 0)))
    terms = columns.reshape(convolution.steps, TERMS, -1).transpose(1, 0, 2)  # (terms of a step, steps, maps)
    positions = kept_positions(terms)
    kept = pack_core_matrices([compressed_filters(terms, positions)])
    stages = positions.reshape(*positions.shape[:2], -1, ring.stage_steps, tiles, TILE).transpose(0, 1, 4, 2, 3, 5)
    count = tiles * stages.shape[3]
    both = kept.reshape(count, -1), metadata_words(stages).reshape(count, -1).view(np.float16)
    return np.concatenate(both, axis=1).reshape(-1)


def pad_to_tiles(numbers: np.ndarray | None) -> np.ndarray | None:
    """Pad one number per map with zeros to whole tiles of maps, as float32; None stays None."""
    if numbers is None:
        return None
    return np.pad(numbers.astype(np.float32), (0, -len(numbers) % TILE))
