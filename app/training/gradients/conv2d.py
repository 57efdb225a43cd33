"""Convolution: both gradients are matrix products over im2col pieces that fit a core's cache."""

import numpy as np

from app.layers import Conv2d, Parameters
from app.layers.conv2d import IM2COL_BYTES, im2col, windows_of


def forward(layer: Conv2d, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Compute y; keep x: laying out its windows again costs less than keeping K² copies of it."""
    return layer.reference(x, parameters), x


def backward(
    layer: Conv2d, x: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """dk = im2col(x)ᵀ dy; dx is the sum of the windows' gradients dy kᵀ, each at the place of its window."""
    images, maps, height, width = dy.shape
    filters = parameters[layer.name]
    rows = dy.transpose(0, 2, 3, 1).reshape(-1, maps)  # (B·OH·OW, M); a view if memory is N, H, W, C already
    dk = np.zeros((filters[..., 0].size, maps), x.dtype)
    dx = np.zeros(np.take(x.shape, (0, 2, 3, 1)), x.dtype) if wanted else None
    few = max(IM2COL_BYTES // (height * width * len(dk) * x.itemsize), 1)
    turned = np.ascontiguousarray(filters.transpose(3, 1, 0, 2)).reshape(maps, -1)  # (M, K·K·C) as _scatter has it
    windows = windows_of(x, layer.kernel, layer.stride)
    memory = np.empty(min(few, images) * height * width * len(dk), x.dtype)
    for at in range(0, images, few):
        piece = rows[at * height * width : (at + few) * height * width]
        dk += im2col(windows[at : at + few], memory).T @ piece
        if dx is not None:
            _scatter(layer, piece @ turned, dx[at : at + few], height, width)
    gradients = {layer.name: dk.reshape(filters.shape)}
    if f"{layer.name}_bias" in parameters:
        gradients[f"{layer.name}_bias"] = rows.sum(axis=0)
    return None if dx is None else dx.transpose(0, 3, 1, 2), gradients


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
