"""Define the registry rows of the kernels for lenet5 with sparse second filters ; pack the filters.

A sparse product takes A, 64 maps x 32 input maps, as 64 x 16 kept weights: two of every four, in their order.
Metadata has two bits for the place of each kept weight among its four, the earlier one's in the lower bits. A register
holds the metadata of two rows and 16 input maps. Lanes 0 and 1, or 2 and 3, of every four lanes provide it: the
product's selector chooses, so one register serves two products.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from app.kernels.fused.conv_pair import (
    FILTER_STEP,
    POOLED_IMAGE,
    WARPGROUPS_OF_SPLIT_MAPS,
    WINDOWS,
    configure_persistent,
    configure_split,
    hopper_row,
    pack_convolutions,
    pack_core_matrices,
    wgmma_refusal_reason,
)
from app.kernels.plain_problems import GROUP, KEPT, Argument
from app.kernels.problems import ConvPairProblem
from app.kernels.variant import LaunchConfig, Packing, Parameters, Unfit, Variant

FILTERS2 = 25 * FILTER_STEP + 4 * 128 * 16  # bytes of the kept weights of all taps, and of the metadata
WARPGROUPS = {2: 5, 3: 3, 4: 3}  # by images of each at a time: as many as have registers (96, 135, 166 by ptxas)
LANES_OF_A_PAIR = 2  # of every four lanes, those that provide a product's metadata


def kept_places(filters: np.ndarray) -> np.ndarray:
    """Return the places of the kept weights among their four input maps: (C, K, K, M) → (C/4, 2, K, K, M), rising.

    The places include every nonzero weight; a four with fewer than two keeps zeros, too. The filters must be sparse.
    """
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    nonzero_first = np.argsort(groups == 0, axis=1, kind="stable")
    return np.sort(nonzero_first[:, :KEPT], axis=1)


def compressed_filters(filters: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the kept weights, (C/2, K, K, M) of the same dtype, for these places."""
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    return np.take_along_axis(groups, places, axis=1).reshape(-1, *filters.shape[1:])


def metadata_words(places: np.ndarray) -> np.ndarray:
    """Return what the threads of a warpgroup provide for 64 maps of 32 channels: (vectors of 8 taps, 128, 4) uint32.

    Word i of thread 32 w + 4 g + t in vector v is for tap 8 v + 2 i + t / 2: for maps 16 w + g in its lower half and 8
    maps on in its upper half, the four bits of each four input maps from 16 (t % 2) on. Taps that do not exist are 0.
    """
    groups, _, height, width, maps = places.shape
    taps = height * width
    bits = (places[:, 0] | places[:, 1] << 2).astype(np.uint32).reshape(groups, taps, maps)
    padded = np.zeros((groups, -(-taps // 8) * 8, maps), np.uint32)
    padded[:, :taps] = bits
    # axes: half of the channels, four, vector, word, pair of lanes | warp, half of the word, g
    parts = padded.reshape(2, 4, -1, 4, LANES_OF_A_PAIR, 4, 2, 8)
    shifts = (4 * np.arange(4)[:, None] + 16 * np.arange(2)).astype(np.uint32)  # four, half of the word
    words = (parts << shifts[None, :, None, None, None, None, :, None]).sum(axis=(1, 6), dtype=np.uint32)
    # axes now: half of the channels, vector, word, pair of lanes, warp, g
    return np.ascontiguousarray(words.transpose(1, 4, 5, 3, 0, 2)).reshape(-1, 128, 4)


def pack_sparse_filters(filters: np.ndarray) -> np.ndarray:
    """Pack (32, 5, 5, 64) float16 as bytes: core matrices of the kept weights, then metadata. They must be sparse."""
    places = kept_places(filters)
    compressed = compressed_filters(filters, places)
    if np.count_nonzero(compressed) != np.count_nonzero(filters):
        raise ValueError("the filters are not 2:4 sparse")
    parts = pack_core_matrices(compressed), metadata_words(places)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def _with_sparse_filters(problem: ConvPairProblem, config: LaunchConfig) -> LaunchConfig:
    """Return the launch configuration of dense second filters with sparse ones and their metadata."""
    assert config.packing is not None
    filters1, _, scales = config.packing.takes
    takes = (filters1, Argument("filters2", "uint8", fixed=FILTERS2), scales)
    return replace(config, packing=Packing(takes, partial(pack_convolutions, problem, pack2=pack_sparse_filters)))


def _configure_float16(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    images = parameters["images"]
    if images not in WARPGROUPS:
        raise Unfit(f"there are no registers for {images} images in each warpgroup")
    warpgroups = WARPGROUPS[images]
    shared = FILTERS2 + warpgroups * (images * POOLED_IMAGE + 2 * WINDOWS) + 16
    config = _with_sparse_filters(problem, configure_persistent(problem, warpgroups, shared))
    return replace(config, defines={"IMAGES": images, "WARPGROUPS": warpgroups})


def _configure_exact(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    return _with_sparse_filters(problem, configure_split(problem, parameters["images"], FILTERS2 + 8))


ROWS: tuple[Variant, ...] = (
    hopper_row(
        7,
        "wgmma_sparse",
        system="none of them",
        configure=_configure_float16,
        dtypes=("float16",),
        since="wgmma",
        summary="step 2, its second convolution with 2:4 sparse filters: half the tensor-core time",
        sparse=True,
        tunables={"images": (2, 3, 4)},
        defaults=lambda _: {"images": 2},
    ),
    hopper_row(
        8,
        "wgmma_sparse_exact",
        system="none of them",
        configure=_configure_exact,
        dtypes=("float16x2",),
        since="wgmma-exact",
        summary="step 4, its second convolution with 2:4 sparse filters: half the tensor-core time",
        refuses=partial(wgmma_refusal_reason, exact=True),
        sparse=True,
        tunables={"images": tuple(WARPGROUPS_OF_SPLIT_MAPS)},
        defaults=lambda _: {"images": 2},
    ),
)
