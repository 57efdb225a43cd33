"""Pack 2:4 sparse filters for Hopper's sparse products; define the registry rows of lenet5's kernels with such filters.

A sparse float16 product takes A, 64 maps x 32 terms, as 64 x 16 kept weights: two of every four terms, in their order.
Metadata has two bits for the position of each kept weight among its four, the earlier one's in the lower bits. A
register holds the metadata of two rows and 16 terms. Lanes 0 and 1, or 2 and 3, of every four lanes provide it: the
product's selector chooses, so one register serves two products.

A sparse int8 product takes A, 64 maps x 64 terms, as 64 x 32 kept weights. The terms are four groups of 16 input maps,
each of one tap. Product 6 h + r has taps 0 to 3 of filter row r, for half h of the input maps; product 6 h + 5 has the
last taps of rows 0 to 3. Groups 1 and 3 of product 12 are the last tap of the filter for either half; its other weights
are 0. A register holds the metadata of one row and two groups: lanes 0 and 1 of every four provide the first two groups
of rows g and g + 8, lanes 2 and 3 the other two. All lanes provide metadata, so the selector is 0.
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

TERMS = 32  # of a sparse float16 product
MAPS = 64  # of a product
METADATA, BEHIND = 4 * 128 * 16, 2560  # bytes: of metadata, and behind the pooled maps of an image in int8
# Images per warpgroup → warpgroups that have registers for them (ptxas: 96, 135, 166; in int8 96, 135, 165).
WARPGROUPS = {2: 5, 3: 3, 4: 3}


def kept_positions(filters: np.ndarray) -> np.ndarray:
    """Return the positions, 0 to 3 and ascending, of two kept weights in every four maps: (C, …, M) → (C/4, 2, …, M).

    They include all nonzero weights of 2:4 sparse filters; a group of four with fewer than two keeps zeros, too.
    """
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    nonzero_first = np.argsort(groups == 0, axis=1, kind="stable")
    return np.sort(nonzero_first[:, :KEPT], axis=1)


def compressed_filters(filters: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the weights at ``positions``: (C, …, M) → (C/2, …, M). Raises ValueError if any other is nonzero."""
    groups = filters.reshape(-1, GROUP, *filters.shape[1:])
    compressed = np.take_along_axis(groups, positions, axis=1).reshape(-1, *filters.shape[1:])
    if np.count_nonzero(compressed) != np.count_nonzero(filters):
        raise ValueError("the filters are not 2:4 sparse")
    return compressed


def group_bits(positions: np.ndarray) -> np.ndarray:
    """Return the four bits of metadata of each group of four: positions (C/4, 2, …) → (C/4, …) uint32."""
    return (positions[:, 0] | positions[:, 1] << 2).astype(np.uint32)


def metadata_words(positions: np.ndarray) -> np.ndarray:
    """Return the metadata of float16 products: positions (8, 2, …, steps, 64 maps) → (…, step pairs, 128) uint32.

    A step is a product of 32 terms. The word of thread 32 w + 4 g + t is for step t / 2 of the pair. Its lower half has
    four bits of map 16 w + g for each four terms from 16 (t % 2) on, its upper half those of the map 8 further on.
    Steps that do not exist are 0.
    """
    *others, steps, _ = positions.shape[2:]
    bits = group_bits(positions).reshape(TERMS // GROUP, -1, steps, MAPS)
    bits = np.pad(bits, ((0, 0), (0, 0), (0, steps % 2), (0, 0)))
    # axes: half of the terms, group, others, pair of steps, step of the pair, warp, half of the word, g
    parts = bits.reshape(2, 4, *bits.shape[1:2], -1, 2, 4, 2, 8)
    shifts = (4 * np.arange(4)[:, None] + 16 * np.arange(2)).astype(np.uint32)  # group, half of the word
    words = (parts << shifts[None, :, None, None, None, None, :, None]).sum(axis=(1, 6), dtype=np.uint32)
    # axes now: half of the terms, others, pair of steps, step of the pair, warp, g
    return np.ascontiguousarray(words.transpose(1, 2, 4, 5, 3, 0)).reshape(*others, -1, 128)


def sparse_pair_work(pair: ConvPairProblem) -> float:
    """Return the products that a sparse kernel computes ÷ the pair's: it skips half of the second convolution's."""
    return 1 - pair.second.flops / (pair.first.flops + pair.second.flops) / 2


def byte_metadata_words(positions: np.ndarray) -> np.ndarray:
    """Return the metadata of P int8 products: positions (16 groups of four, 2, P, 64 maps) → (P, 128) uint32.

    The word of thread 32 w + 4 g + t has the bits of map 16 w + 8 (t % 2) + g for eight groups from 8 (t / 2) on.
    """
    parts = group_bits(positions).reshape(2, 8, -1, 4, 2, 8)  # axes: half of k, group, product | warp, t % 2, g
    shifts = 4 * np.arange(8, dtype=np.uint32)
    words = (parts << shifts[:, None, None, None, None]).sum(axis=1, dtype=np.uint32)
    return words.transpose(1, 2, 4, 0, 3).reshape(-1, 128)


def pack_sparse_filters(filters: np.ndarray) -> np.ndarray:
    """Pack (32, 5, 5, 64) float16 or int8 as bytes: core matrices of the kept weights, then metadata.

    A thread's words of metadata form four vectors: (4, 128, 4). Raises ValueError if the filters are not 2:4 sparse.
    """
    is_bytes = filters.dtype == np.int8
    along_k = parts_along_k(filters) if is_bytes else filters.reshape(32, 25, -1)
    positions = kept_positions(along_k)
    words = byte_metadata_words(positions) if is_bytes else metadata_words(positions)
    vectors = np.pad(words, ((0, -len(words) % 4), (0, 0))).reshape(-1, 4, 128).transpose(0, 2, 1)
    compressed = compressed_filters(along_k, positions)
    parts = pack_core_matrices(compressed), np.ascontiguousarray(vectors)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def parts_along_k(filters: np.ndarray) -> np.ndarray:
    """Return int8 filters (32, 5, 5, 64) in the order of their products: (64 terms along k, 13 products, 64)."""
    taps = filters.reshape(2, 16, 5, 5, -1)  # axes: half of the channels, channel, row, column, map
    first_four, last = taps[:, :, :, :4].transpose(0, 2, 3, 1, 4), taps[:, :, :4, 4].swapaxes(1, 2)[:, None]
    parts = np.zeros((13, 4, 16, taps.shape[-1]), filters.dtype)
    parts[:12] = np.concatenate([first_four, last], axis=1).reshape(12, *parts.shape[1:])
    parts[12, 1::2] = taps[:, :, 4, 4]
    return parts.transpose(1, 2, 0, 3).reshape(64, 13, -1)


def _configure(problem: ConvPairProblem, products: int, warpgroups: int, beside_filters: int) -> LaunchConfig:
    """Return the configuration. products: per second sum. beside_filters: bytes of other data in shared memory."""
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
