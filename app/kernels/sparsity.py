"""Recognise 2:4 structured sparsity: of every four consecutive input maps, at most two have a weight.

The four input maps are 4i to 4i + 3 at one pixel of one filter; each output map has its own two. Hopper's sparse
tensor-core products skip the zeros of such filters, at twice the rate.
"""

import numpy as np

GROUP, KEPT = 4, 2  # input maps, and how many of them have a weight


def is_two_of_four(filters: np.ndarray) -> bool:
    """Return whether an array is filters (K, K, in, out) with at most two nonzero weights in every four input maps."""
    if filters.ndim != 4 or filters.shape[2] % GROUP:
        return False
    groups = filters.reshape(-1, GROUP, filters.shape[3])
    return bool((np.count_nonzero(groups, axis=1) <= KEPT).all())
