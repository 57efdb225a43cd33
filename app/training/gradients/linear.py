"""Fully connected layer: two matrix products with transposes, and column sums for the bias."""

import numpy as np

from app.layers import Linear, Parameters


def forward(layer: Linear, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Compute y; keep x."""
    return layer.reference(x, parameters), x


def backward(
    layer: Linear, x: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """dw = xᵀ dy, dx = dy wᵀ."""
    gradients = {layer.name: x.T @ dy}
    if f"{layer.name}_bias" in parameters:
        gradients[f"{layer.name}_bias"] = dy.sum(axis=0)
    return dy @ parameters[layer.name].T if wanted else None, gradients
