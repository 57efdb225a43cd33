"""Pack 2:4 sparse filters for Hopper's sparse products; define the registry rows of lenet5's kernels with such filters.

A sparse product takes A, 64 maps x 32 terms, as 64 x 16 kept weights: two of every four, in their order. Metadata has
two bits for the place of each kept weight among its four, the earlier one's in the lower bits. A register holds the
metadata of two rows and 16 terms. Lanes 0 and 1, or 2 and 3, of every four lanes provide it: the product's selector
chooses, so one register serves two products.

Of bytes, A is 64 maps x 64 numbers along k, as 64 x 32 kept
weights: four parts of 16 input maps of one tap. Product 6 h + r has taps 0 to 3 of filter row r, for half h of the
input maps; product 6 h + 5 has the last taps of rows 0 to 3. Parts 1 and 3 of product 12 are the last tap of either
half; its other weights are 0. A register holds the metadata of one row and two parts: lanes 0 and 1 of every four
provide the first two parts of rows g and g + 8, lanes 2 and 3 the other two. So all lanes provide it, and the selector
is 0.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from app.base.precision import INTEGERS
from app.kernels.fused.conv_pair import (
    FILTER_STEP,
    POOLED_IMAGE,
    WINDOWS,
    configure_persistent,
    hopper_row,
    pack_convolutions,
    pack_core_matrices,
    pack_int8_filters,
    wgmma_refusal_reason,
)
from app.kernels.plain_problems import GROUP, KEPT, Argument
from app.kernels.problems import ConvPairProblem
from app.kernels.variant import LaunchConfig, Packing, Parameters, Unfit, Variant

TERMS = 32  # of a sparse product
MAPS = 64  # of a product
METADATA, BEHIND = 4 * 128 * 16, 2560  # bytes; BEHIND: after bytes' pooled maps, for each image, see the kernel
# By images of each at a time: as many as have registers (96, 135, 166 by ptxas; of bytes 96, 135, 165).
WARPGROUPS = {2: 5, 3: 3, 4: 3}


def kept_places(filters: np.ndarray) -> np.ndarray:
    """Return the places of the kept weights among their four input maps: (C, …, M) → (C/4, 2, …, M), rising.

    The places include every nonzero weight; a four with fewer than two keeps zeros, too. The filters must be sparse.
    """
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    nonzero_first = np.argsort(groups == 0, axis=1, kind="stable")
    return np.sort(nonzero_first[:, :KEPT], axis=1)


def compressed_filters(filters: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the kept weights, (C/2, …, M) of the same dtype, for these places. Raises ValueError if there are more."""
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    compressed = np.take_along_axis(groups, places, axis=1).reshape(-1, *filters.shape[1:])
    if np.count_nonzero(compressed) != np.count_nonzero(filters):
        raise ValueError("the filters are not 2:4 sparse")
    return compressed


def four_bits(places: np.ndarray) -> np.ndarray:
    """Return the metadata of each four: (C/4, 2, …) → (C/4, …) uint32, the earlier place in the lower two bits."""
    return (places[:, 0] | places[:, 1] << 2).astype(np.uint32)


def metadata_words(places: np.ndarray) -> np.ndarray:
    """Return what the threads of a warpgroup provide: (8, 2, …, steps, 64 maps) → (…, pairs of steps, 128) uint32.

    A step is a product of 32 terms. The word of thread 32 w + 4 g + t is for step t / 2 of its pair: for maps 16 w + g
    in its lower half and 8 maps on in its upper half, the four bits of each four terms from 16 (t % 2) on. Steps that
    do not exist are 0.
    """
    *others, steps, _ = places.shape[2:]
    bits = four_bits(places).reshape(TERMS // GROUP, -1, steps, MAPS)
    bits = np.pad(bits, ((0, 0), (0, 0), (0, steps % 2), (0, 0)))
    # axes: half of the terms, four, others, pair of steps, step of the pair, warp, half of the word, g
    parts = bits.reshape(2, 4, *bits.shape[1:2], -1, 2, 4, 2, 8)
    shifts = (4 * np.arange(4)[:, None] + 16 * np.arange(2)).astype(np.uint32)  # four, half of the word
    words = (parts << shifts[None, :, None, None, None, None, :, None]).sum(axis=(1, 6), dtype=np.uint32)
    # axes now: half of the terms, others, pair of steps, step of the pair, warp, g
    return np.ascontiguousarray(words.transpose(1, 2, 4, 5, 3, 0)).reshape(*others, -1, 128)


def sparse_pair_work(pair: ConvPairProblem) -> float:
    """Return the products that a kernel computes ÷ those of the pair, whose second filters are sparse."""
    return 1 - pair.second.flops / (pair.first.flops + pair.second.flops) / 2


def byte_metadata_words(places: np.ndarray) -> np.ndarray:
    """Return what the threads of a warpgroup provide for products of bytes: (16 fours, 2, P, 64) → (P, 128) uint32.

    Thread 32 w + 4 g + t: for map 16 w + 8 (t % 2) + g, the four bits of each of eight fours from 8 (t / 2) on.
    """
    parts = four_bits(places).reshape(2, 8, -1, 4, 2, 8)  # axes: half of the fours, four, product | warp, t % 2, g
    shifts = 4 * np.arange(8, dtype=np.uint32)
    words = (parts << shifts[:, None, None, None, None]).sum(axis=1, dtype=np.uint32)
    return words.transpose(1, 2, 4, 0, 3).reshape(-1, 128)


def pack_sparse_filters(filters: np.ndarray) -> np.ndarray:
    """Pack (32, 5, 5, 64) float16 or int8 as bytes: core matrices of the kept weights, then metadata.

    A thread's words of metadata lie in four vectors: (4, 128, 4). Raises ValueError if the filters are not sparse.
    """
    is_bytes = filters.dtype == np.int8
    along_k = parts_along_k(filters) if is_bytes else filters.reshape(32, 25, -1)
    places = kept_places(along_k)
    words = byte_metadata_words(places) if is_bytes else metadata_words(places)
    vectors = np.pad(words, ((0, -len(words) % 4), (0, 0))).reshape(-1, 4, 128).transpose(0, 2, 1)
    compressed = compressed_filters(along_k, places)
    parts = pack_core_matrices(compressed), np.ascontiguousarray(vectors)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def parts_along_k(filters: np.ndarray) -> np.ndarray:
    """Return int8 filters (32, 5, 5, 64) in the order of their products: (64 numbers along k, 13 products, 64)."""
    taps = filters.reshape(2, 16, 5, 5, -1)  # axes: half of the channels, channel, row, column, map
    first_four, last = taps[:, :, :, :4].transpose(0, 2, 3, 1, 4), taps[:, :, :4, 4].swapaxes(1, 2)[:, None]
    parts = np.zeros((13, 4, 16, taps.shape[-1]), filters.dtype)
    parts[:12] = np.concatenate([first_four, last], axis=1).reshape(12, *parts.shape[1:])
    parts[12, 1::2] = taps[:, :, 4, 4]
    return parts.transpose(1, 2, 0, 3).reshape(64, 13, -1)


def _configure(problem: ConvPairProblem, products: int, warpgroups: int, beside_filters: int) -> LaunchConfig:
    """Return the launch configuration. beside_filters: bytes of shared memory without second filters and metadata."""
    filters2 = products * FILTER_STEP + METADATA
    config = configure_persistent(problem, warpgroups, filters2 + beside_filters)
    assert config.packing is not None
    filters1, _, scales = config.packing.takes
    takes = (filters1, Argument("filters2", "uint8", fixed=filters2), scales)
    pack = pack_int8_filters if problem.dtype == INTEGERS else pack_convolutions
    return replace(config, packing=Packing(takes, partial(pack, problem, pack2=pack_sparse_filters)))


def _configure_images(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    images, integers = parameters["images"], problem.dtype == INTEGERS
    if images not in WARPGROUPS:
        raise Unfit(f"there are no registers for {images} images in each warpgroup")
    warpgroups = WARPGROUPS[images]
    each = images * POOLED_IMAGE // (1 + integers) + 2 * WINDOWS
    products, behind = (13, 8 + images * BEHIND) if integers else (25, 16)
    config = _configure(problem, products, warpgroups, warpgroups * each + behind)
    return replace(config, defines={"IMAGES": images, "WARPGROUPS": warpgroups})


def _configure_exact(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return _configure(problem, 25, 3, 3 * (4 * POOLED_IMAGE + 2 * WINDOWS) + 8)


sparse_row = partial(hopper_row, sparse=True, work=sparse_pair_work)
by_images = partial(
    sparse_row, configure=_configure_images, tunables={"images": (2, 3, 4)}, defaults=lambda _: {"images": 2}
)
ROWS: tuple[Variant, ...] = (
    by_images(
        7,
        "wgmma_sparse",
        dtypes=("float16",),
        since="wgmma",
        summary="step 2, its second convolution with 2:4 sparse filters: half the tensor-core time",
    ),
    sparse_row(
        8,
        "wgmma_sparse_exact",
        configure=_configure_exact,
        dtypes=("float16x2",),
        since="wgmma-exact",
        summary="step 4, its second convolution with 2:4 sparse filters: half the tensor-core time",
        refuses=partial(wgmma_refusal_reason, exact=True),
    ),
    by_images(
        9,
        "wgmma_sparse_int8",
        dtypes=("int8",),
        since="wgmma-int8",
        summary="step 5, its second convolution with 2:4 sparse filters: half the tensor-core time",
    ),
)
