"""Print the largest error among 100,000 products of float32 that are replaced by one, two or three float16 products."""

import numpy as np


def high_part(x: np.ndarray) -> np.ndarray:
    """Return the float16 nearest to each number, as float64."""
    return x.astype(np.float16).astype(np.float64)


def low_part(x: np.ndarray) -> np.ndarray:
    """Return the float16 nearest to x - high_part(x), which is scaled by a power of two meanwhile to keep all bits."""
    return high_part((x - high_part(x)) * 2.0**11) / 2.0**11


a, b = np.random.default_rng(0).uniform(1, 2, (2, 100_000)).astype(np.float32)
exact = a.astype(np.float64) * b
for name, found in {
    "one product": high_part(a) * high_part(b),
    "two products": high_part(a) * high_part(b) + low_part(a) * high_part(b),
    "three products": high_part(a) * high_part(b) + low_part(a) * high_part(b) + high_part(a) * low_part(b),
    "float32": (a * b).astype(np.float64),
}.items():
    print(f"{name}: error 2^{np.log2(np.abs(found / exact - 1).max()):.1f}")
