"""Pack 2:4 sparse filters for Hopper's sparse tensor-core products.

A sparse product takes A, 64 maps x 32 terms, as 64 x 16 kept weights: two of every four, in their order. Metadata has
two bits for the place of each kept weight among its four, the earlier one's in the lower bits. A register holds the
metadata of two rows and 16 terms. Lanes 0 and 1, or 2 and 3, of every four lanes provide it: the product's selector
chooses, so one register serves two products.
"""

import numpy as np

from app.kernels.plain_problems import GROUP, KEPT
from app.kernels.problems import ConvPairProblem

TERMS = 32  # of a sparse product
MAPS = 64  # of a product


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
