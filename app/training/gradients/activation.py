"""Activations: the slope is a function of the output."""

from collections.abc import Callable

import numpy as np

from app.layers import Activation, Parameters, Relu, Sigmoid, Tanh


def forward(layer: Activation, x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Compute y and keep it. The reference works in place, so it gets a copy: the layer before may have kept x."""
    y = layer.reference(x.copy(order="K"), parameters)
    return y, y


def backward(
    layer: Activation, y: np.ndarray, dy: np.ndarray, parameters: Parameters, wanted: bool
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """dx = dy · slope(y)."""
    return dy * SLOPES[type(layer)](y), {}


SLOPES: dict[type[Activation], Callable[[np.ndarray], np.ndarray]] = {
    Relu: lambda y: y > 0,  # 0 at 0, as is usual
    Tanh: lambda y: 1 - y * y,
    Sigmoid: lambda y: y * (1 - y),
}
