"""ReLU, tanh and sigmoid: their slopes follow from their outputs."""

from __future__ import annotations

import numpy as np

from app.layers import Activation, Parameters


def forward(layer: Activation, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Keeps y. The reference works in place; the layer before may have kept x."""
    y = layer.reference(x.copy(order="K"), parameters)
    return y, y


def backward_relu(
    layer: Activation, y: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """1 above 0, else 0 (at 0 too, as is usual)."""
    return dy * (y > 0), {}


def backward_tanh(
    layer: Activation, y: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """1 - y²."""
    return dy * (1 - y * y), {}


def backward_sigmoid(
    layer: Activation, y: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """y (1 - y)."""
    return dy * (y * (1 - y)), {}
