"""Compute gradients, by layer class: a layer without one cannot be trained.

``forward`` computes the layer's reference and keeps the data that ``backward`` needs. ``backward`` turns the gradient
of the loss by the layer's output into the gradients by its input and by its parameters. All in the float type of x.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Parameters, Shape
from app.layers.activation import Activation, Relu, Sigmoid, Tanh
from app.layers.conv2d import IM2COL_BYTES, im2col, windows_of
from app.layers.pool import Pool

Arrays = dict[str, np.ndarray]
Pair = tuple[np.ndarray, np.ndarray]
Index = tuple[slice, ...]
Gradients = tuple[np.ndarray | None, Arrays]
# The slope of an activation is a function of its output.
SLOPES: dict[type[Activation], Callable[[np.ndarray], np.ndarray]] = {
    Relu: lambda y: y > 0,  # 0 at 0, by convention
    Tanh: lambda y: 1 - y * y,
    Sigmoid: lambda y: y * (1 - y),
}


@dataclass(frozen=True)
class Gradient:
    """forward(layer, x, parameters) → y, kept; backward(layer, kept, dy, parameters, wanted) → dx, gradients.

    wanted: whether dx is needed, else it is None (the first layer's is not needed); gradients: by parameter name.
    ``kept`` may be x or y itself: nobody may write to them before ``backward`` (no forward here does).
    """

    forward: Callable[[Any, np.ndarray, Parameters], tuple[np.ndarray, Any]]
    backward: Callable[[Any, Any, np.ndarray, Parameters, bool], Gradients]


def keep_input(layer: Layer, x: np.ndarray, parameters: Parameters) -> Pair:
    """Compute y; keep x: a convolution lays out its windows again, which costs less than keeping K² copies of x."""
    return layer.reference(x, parameters), x


def keep_output(layer: Activation, x: np.ndarray, parameters: Parameters) -> Pair:
    """Compute y and keep it. The reference works in place, so it gets a copy: the layer before may have kept x."""
    y = layer.reference(x.copy(order="K"), parameters)
    return y, y


def keep_both(layer: Pool, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Pair]:
    """Compute y; keep x and y."""
    y = layer.reference(x, parameters)
    return y, (x, y)


def keep_shape(layer: Flatten, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Shape]:
    """Compute y; keep the shape of x."""
    return layer.reference(x, parameters), x.shape


def activation(layer: Activation, y: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Compute dx = dy · slope(y)."""
    return dy * SLOPES[type(layer)](y), {}


def flatten(layer: Flatten, shape: Shape, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Restore the shape and order of the input: dy (B, H·W·C) → dx (B, C, H, W)."""
    images, channels, height, width = shape
    return dy.reshape(images, height, width, channels).transpose(0, 3, 1, 2), {}


def linear(layer: Linear, x: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Compute dw = xᵀ dy, dx = dy wᵀ."""
    gradients = {layer.name: x.T @ dy} | _bias(layer, dy, parameters)
    return dy @ parameters[layer.name].T if wanted else None, gradients


def conv2d(layer: Conv2d, x: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Compute dk = im2col(x)ᵀ dy; dx is the sum of the windows' gradients dy kᵀ, each added at its window's place.

    Both are matrix products over im2col pieces that fit a core's cache.
    """
    images, maps, height, width = dy.shape
    filters = parameters[layer.name]
    rows = dy.transpose(0, 2, 3, 1).reshape(-1, maps)  # (B·OH·OW, M); a view if memory is N, H, W, C already
    dk = np.zeros((filters[..., 0].size, maps), x.dtype)
    padding, (_, _, rows_of_x, columns_of_x) = layer.padding, x.shape
    padded = len(x), rows_of_x + 2 * padding, columns_of_x + 2 * padding, x.shape[1]
    dx = np.zeros(padded, x.dtype) if wanted else None
    few = max(IM2COL_BYTES // (height * width * len(dk) * x.itemsize), 1)
    turned = np.ascontiguousarray(filters.transpose(3, 1, 0, 2)).reshape(maps, -1)  # (M, K·K·C) as _scatter has it
    windows = windows_of(x, layer.kernel, layer.stride, padding)
    memory = np.empty(min(few, images) * height * width * len(dk), x.dtype)
    for at in range(0, images, few):
        piece = rows[at * height * width : (at + few) * height * width]
        dk += im2col(windows[at : at + few], memory).T @ piece
        if dx is not None:
            _scatter(layer, piece @ turned, dx[at : at + few], height, width)
    gradients = {layer.name: dk.reshape(filters.shape)} | _bias(layer, rows, parameters)
    if dx is None:
        return None, gradients
    inside = dx[:, padding : padding + rows_of_x, padding : padding + columns_of_x]
    return inside.transpose(0, 3, 1, 2), gradients


def _bias(layer: Conv2d | Linear, dy: np.ndarray, parameters: Parameters) -> Arrays:
    """Return the gradient of the layer's bias, if it has one. dy: (rows, outputs)."""
    name = f"{layer.name}_bias"
    return {name: dy.sum(axis=0)} if name in parameters else {}


def _scatter(layer: Conv2d, columns: np.ndarray, dx: np.ndarray, height: int, width: int) -> None:
    """Add the gradients of all windows, (B·OH·OW, K·K·C), to dx, (B, H, W, C); columns of a window come before rows.

    Along W first, so that whole columns of a window are contiguous in memory; single pixels would be too short.
    """
    kernel, step = layer.kernel, layer.stride
    windows = columns.reshape(len(dx), height, width, kernel, kernel, -1)
    strips = np.zeros((len(dx), height, dx.shape[2], *windows.shape[4:]), dx.dtype)
    for q in range(kernel):
        strips[:, :, q : q + step * (width - 1) + 1 : step] += windows[:, :, :, q]
    for p in range(kernel):
        dx[:, p : p + step * (height - 1) + 1 : step] += strips[:, :, :, p]


def average(layer: Pool, kept: Pair, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Give every pixel of a window the same share of the window's gradient; windows may overlap."""
    x, _ = kept
    dx = np.zeros_like(x)
    share = dy / layer.pixels(x.shape[1:]).astype(x.dtype)
    for place, windows in _places(layer, x, dy):
        dx[place] += share[windows]
    return dx, {}


def maximum(layer: Pool, kept: Pair, dy: np.ndarray, parameters: Parameters, wanted: bool) -> Gradients:
    """Give the maximum of a window its whole gradient; among equals the first one, by rows."""
    x, y = kept
    dx = np.zeros_like(x)
    open_ = np.ones_like(y, dtype=bool)  # windows whose maximum is not found yet
    for place, windows in _places(layer, x, dy):
        hit = (x[place] == y[windows]) & open_[windows]
        dx[place] += dy[windows] * hit
        open_[windows] ^= hit
    return dx, {}


def _places(layer: Pool, x: np.ndarray, dy: np.ndarray) -> Iterator[tuple[Index, Index]]:
    """For each pixel of a window, by rows: the index of that pixel in x, and of the windows that have it inside x."""
    height, width = dy.shape[2:]
    for p, q in product(range(layer.window), repeat=2):
        rows = slice(p, p + layer.step * (height - 1) + 1, layer.step)
        place = slice(None), slice(None), rows, slice(q, q + layer.step * (width - 1) + 1, layer.step)
        yield place, tuple(slice(size) for size in x[place].shape)


GRADIENTS: dict[type[Layer], Gradient] = {
    AvgPool: Gradient(keep_both, average),
    Conv2d: Gradient(keep_input, conv2d),
    Flatten: Gradient(keep_shape, flatten),
    Linear: Gradient(keep_input, linear),
    MaxPool: Gradient(keep_both, maximum),
    **dict.fromkeys(SLOPES, Gradient(keep_output, activation)),
}
