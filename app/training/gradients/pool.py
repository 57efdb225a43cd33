"""Average and maximum pooling; windows may overlap."""

from collections.abc import Iterator

import numpy as np

from app.layers import Parameters
from app.layers.pool import Pool

Kept = tuple[np.ndarray, np.ndarray]


def forward(layer: Pool, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Kept]:
    """Compute y; keep x and y."""
    y = layer.reference(x, parameters)
    return y, (x, y)


def backward_average(
    layer: Pool, kept: Kept, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Every pixel of a window gets the same share of the window's gradient."""
    dx = np.zeros_like(kept[0])
    share = dy / layer.window**2
    for place in _places(layer, dy):
        dx[place] += share
    return dx, {}


def backward_maximum(
    layer: Pool, kept: Kept, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """The maximum of a window gets its whole gradient; among equals the first one, by rows."""
    x, y = kept
    dx = np.zeros_like(x)
    open_ = np.ones_like(y, dtype=bool)  # windows whose maximum has not been met yet
    for place in _places(layer, dy):
        hit = (x[place] == y) & open_
        dx[place] += dy * hit
        open_ ^= hit
    return dx, {}


def _places(layer: Pool, dy: np.ndarray) -> Iterator[tuple[slice, ...]]:
    """For each pixel of a window, by rows: the index of that pixel of all windows in x."""
    height, width = dy.shape[2:]
    for p in range(layer.window):
        for q in range(layer.window):
            rows = slice(p, p + layer.step * (height - 1) + 1, layer.step)
            yield slice(None), slice(None), rows, slice(q, q + layer.step * (width - 1) + 1, layer.step)
