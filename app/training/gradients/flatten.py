"""Flatten: the gradient is reshaped to the input's shape."""

import numpy as np

from app.layers import Flatten, Parameters, Shape


def forward(layer: Flatten, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Shape]:
    """Compute y; keep the shape of x."""
    return layer.reference(x, parameters), x.shape


def backward(
    layer: Flatten, shape: Shape, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """dy (B, H·W·C) → dx (B, C, H, W)."""
    images, channels, height, width = shape
    return dy.reshape(images, height, width, channels).transpose(0, 3, 1, 2), {}
