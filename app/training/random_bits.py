"""Compute random bits from a counter: a pure function of seed, use, epoch and image, equal on all GPUs.

The mixing function is SplitMix64's (Steele, Lea, Flood, 2014). It needs only integer arithmetic, as on the GPU.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FRACTION_BITS = 24


class RandomUse(IntEnum):
    """Uses of random bits; each has a separate stream."""

    SPLIT = 1
    ORDER = 2
    AUGMENT = 3
    DROPOUT = 4
    INITIAL = 5


def random_bits(
    seed: int, use: RandomUse, items: np.ndarray, count: int = 1, *, part: int = 0, epoch: int = 0
) -> np.ndarray:
    """Return random bits, (len(items), count) uint64.

    items: integers, such as indices of images in the training set. part: number of the stream among several of one use,
    such as the number of a layer.
    """
    key = stream_key(seed, use, part=part, epoch=epoch)
    rows = _splitmix64_mix(key + (items.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return _splitmix64_mix(rows[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


@lru_cache(64)  # all batches of an epoch use the same few keys
def stream_key(seed: int, use: RandomUse, *, part: int = 0, epoch: int = 0) -> np.uint64:
    """Return the key of one stream of random bits, which ``random_bits`` and the kernels hash with an item's index."""
    key = np.array([seed], np.uint64)
    for number in (use, part, epoch):
        key = _splitmix64_mix(key) + np.array([number], np.uint64) * GOLDEN
    return np.uint64(_splitmix64_mix(key)[0])


def integers_below(bits: np.ndarray, below: int) -> np.ndarray:
    """Return the upper halves of uint64 bits, scaled to int64 integers from 0 to ``below`` - 1."""
    return ((bits >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def unit_fractions(bits: np.ndarray) -> np.ndarray:
    """Return uint64 bits as float64 in [0, 1), multiples of 2**-24, of the same shape."""
    return (bits >> np.uint64(64 - FRACTION_BITS)).astype(np.float64) / (1 << FRACTION_BITS)


def dropout_threshold_and_factor(share: float) -> tuple[int, np.float32]:
    """Return (bound, factor): FRACTION_BITS-bit numbers below bound drop a feature; others multiply it by factor."""
    return round(share * (1 << FRACTION_BITS)), np.float32(1 / (1 - share))


def random_order(seed: int, use: RandomUse, items: np.ndarray, *, epoch: int = 0) -> np.ndarray:
    """Return the items, (n,) integers, in a random order that depends only on seed, use and epoch."""
    return items[np.argsort(random_bits(seed, use, items, epoch=epoch)[:, 0], kind="stable")]


def _splitmix64_mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
