"""Compute gradients of the layers in NumPy. A layer class without a gradient function cannot be trained.

A gradient function takes the layer, its input x and output y, the gradient dy of the loss with respect to y, the
parameters, and whether dx, the gradient with respect to x, is needed (for the first layer it is not). It returns dx, or
None, and the gradients of the parameters by name, all in the float type of x. A convolution repeats its im2col, which
costs less than keeping K² copies of x.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Parameters
from app.layers.activation import Activation, LeakyRelu, Relu, Relu6, Sigmoid, Tanh
from app.layers.conv2d import IM2COL_BYTES, im2col, sliding_windows
from app.layers.pool import Pool

Array = np.ndarray
Arrays = dict[str, Array]
Index = tuple[slice, ...]
Gradients = tuple[np.ndarray | None, Arrays]
Gradient = Callable[[Any, Array, Array, Array, Parameters, bool], Gradients]
# The slope of an activation is a function of its output.
SLOPES: dict[type[Activation], Callable[[Any, np.ndarray], np.ndarray]] = {
    Relu: lambda _, y: y > 0,  # 0 at 0, by convention
    Relu6: lambda _, y: (y > 0) & (y < 6),
    LeakyRelu: lambda layer, y: np.where(y > 0, y.dtype.type(1), y.dtype.type(layer.slope)),
    Tanh: lambda _, y: 1 - y * y,
    Sigmoid: lambda _, y: y * (1 - y),
}


def layer_forward(layer: Layer, x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return the output of the layer's reference, leaving x unchanged: activations, which work in place, get a copy."""
    return layer.reference(x.copy(order="K") if isinstance(layer, Activation) else x, parameters)


def activation_backward(
    layer: Activation, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool
) -> Gradients:
    """Return dx = dy · slope(y), in the shape of y."""
    return dy * SLOPES[type(layer)](layer, y), {}


def flatten_backward(
    layer: Flatten, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool
) -> Gradients:
    """Return dy (B, H·W·C) in the shape and order of the input, dx (B, C, H, W)."""
    images, channels, height, width = x.shape
    return dy.reshape(images, height, width, channels).transpose(0, 3, 1, 2), {}


def linear_backward(layer: Linear, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool) -> Gradients:
    """Return dx = dy wᵀ (B, in), dw = xᵀ dy (in, out) and, with a bias, the sums of dy (out,)."""
    gradients = {layer.name: x.T @ dy} | _bias_gradient(layer, dy, parameters)
    return dy @ parameters[layer.name].T if needs_dx else None, gradients


def conv2d_backward(layer: Conv2d, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool) -> Gradients:
    """Return dk = im2col(x)ᵀ dy, and dx: the sum of the windows' gradients dy kᵀ, each at the position of its window.

    With a bias, also return the sums of dy (M,). Both are matrix products over pieces of im2col that fit in cache.
    """
    images, maps, height, width = dy.shape
    filters = parameters[layer.name]
    rows = dy.transpose(0, 2, 3, 1).reshape(-1, maps)  # (B·OH·OW, M); a view if memory is N, H, W, C already
    dk = np.zeros((filters[..., 0].size, maps), x.dtype)
    padding, (_, _, rows_of_x, columns_of_x) = layer.padding, x.shape
    padded = len(x), rows_of_x + 2 * padding, columns_of_x + 2 * padding, x.shape[1]
    dx = np.zeros(padded, x.dtype) if needs_dx else None
    few = max(IM2COL_BYTES // (height * width * len(dk) * x.itemsize), 1)
    turned = np.ascontiguousarray(filters.transpose(3, 1, 0, 2)).reshape(maps, -1)  # (M, K·K·C) as for _col2im
    windows = sliding_windows(x, layer.kernel, layer.stride, padding)
    memory = np.empty(min(few, images) * height * width * len(dk), x.dtype)
    for at in range(0, images, few):
        piece = rows[at * height * width : (at + few) * height * width]
        dk += im2col(windows[at : at + few], memory).T @ piece
        if dx is not None:
            _col2im(layer, piece @ turned, dx[at : at + few], height, width)
    gradients = {layer.name: dk.reshape(filters.shape)} | _bias_gradient(layer, rows, parameters)
    if dx is None:
        return None, gradients
    inside = dx[:, padding : padding + rows_of_x, padding : padding + columns_of_x]
    return inside.transpose(0, 3, 1, 2), gradients


def _bias_gradient(layer: Conv2d | Linear, dy: np.ndarray, parameters: Parameters) -> Arrays:
    """Return the gradient of the bias by name; {} without a bias. dy: (rows, outputs)."""
    name = f"{layer.name}_bias"
    return {name: dy.sum(axis=0)} if name in parameters else {}


def _col2im(layer: Conv2d, columns: np.ndarray, dx: np.ndarray, height: int, width: int) -> None:
    """Add the gradients of all windows, (B·OH·OW, K·K·C), to dx, (B, H, W, C). K·K: column, then row in the window.

    height, width: OH, OW. Sums along W come first, because a window's column of pixels is contiguous in memory.
    """
    kernel, step = layer.kernel, layer.stride
    windows = columns.reshape(len(dx), height, width, kernel, kernel, -1)
    strips = np.zeros((len(dx), height, dx.shape[2], *windows.shape[4:]), dx.dtype)
    for q in range(kernel):
        strips[:, :, q : q + step * (width - 1) + 1 : step] += windows[:, :, :, q]
    for p in range(kernel):
        dx[:, p : p + step * (height - 1) + 1 : step] += strips[:, :, :, p]


def average_pool_backward(
    layer: Pool, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool
) -> Gradients:
    """Return dx (B, C, H, W): each window's gradient is spread evenly over its pixels. Windows may overlap."""
    share, ahead = dy / layer.window_pixel_counts(x.shape[1:]).astype(x.dtype), layer.padding
    dx = np.zeros_like(_pad_start_with_nan(x, ahead))
    for place, windows in _window_positions(layer, dx, dy):
        dx[place] += share[windows]
    return dx[:, :, ahead:, ahead:], {}


def max_pool_backward(layer: Pool, x: Array, y: Array, dy: Array, parameters: Parameters, needs_dx: bool) -> Gradients:
    """Return dx (B, C, H, W): each window's gradient goes to its maximum, or to the first of equal ones, by rows."""
    x = _pad_start_with_nan(x, layer.padding)
    dx = np.zeros_like(x)
    open_ = np.ones_like(y, dtype=bool)  # windows whose maximum is not found yet
    for place, windows in _window_positions(layer, x, dy):
        hit = (x[place] == y[windows]) & open_[windows]
        dx[place] += dy[windows] * hit
        open_[windows] ^= hit
    return dx[:, :, layer.padding :, layer.padding :], {}


def _pad_start_with_nan(x: np.ndarray, padding: int) -> np.ndarray:
    """Return x with rows and columns of NaN before each map; NaN is no window's maximum."""
    ahead = padding, 0
    return np.pad(x, ((0, 0), (0, 0), ahead, ahead), constant_values=np.nan) if padding else x


def _window_positions(layer: Pool, x: np.ndarray, dy: np.ndarray) -> Iterator[tuple[Index, Index]]:
    """Yield, for each position in a window, row by row, the slices of x (the pixels there) and dy (their windows)."""
    height, width = dy.shape[2:]
    for p, q in product(range(layer.window), repeat=2):
        rows = slice(p, p + layer.effective_stride * (height - 1) + 1, layer.effective_stride)
        place = (
            slice(None),
            slice(None),
            rows,
            slice(q, q + layer.effective_stride * (width - 1) + 1, layer.effective_stride),
        )
        yield place, tuple(slice(size) for size in x[place].shape)


GRADIENTS: dict[type[Layer], Gradient] = {
    AvgPool: average_pool_backward,
    Conv2d: conv2d_backward,
    Flatten: flatten_backward,
    Linear: linear_backward,
    MaxPool: max_pool_backward,
    **dict.fromkeys(SLOPES, activation_backward),
}
