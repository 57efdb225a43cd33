"""How many bits a product keeps with one, two and three products of float16 halves: the worst of 100,000."""

import numpy as np


def high(x: np.ndarray) -> np.ndarray:
    """The float16 nearest to each number."""
    return x.astype(np.float16).astype(np.float64)


def low(x: np.ndarray) -> np.ndarray:
    """The float16 nearest to the rest, scaled by a power of two so that it keeps all bits."""
    return high((x - high(x)) * 2.0**11) / 2.0**11


a, b = np.random.default_rng(0).uniform(1, 2, (2, 100_000)).astype(np.float32)
exact = a.astype(np.float64) * b
for name, found in {
    "one product": high(a) * high(b),
    "two products": high(a) * high(b) + low(a) * high(b),
    "three products": high(a) * high(b) + low(a) * high(b) + high(a) * low(b),
    "float32": (a * b).astype(np.float64),
}.items():
    print(f"{name}: error 2^{np.log2(np.abs(found / exact - 1).max()):.1f}")
