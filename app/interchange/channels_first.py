"""A plain forward pass in the origin's layout, written apart from the layers' references to check an import.

Every line follows the textbook formula: activations (B, C, H, W), filters (M, C, K, K) slid over them without turning,
features flattened in C, H, W order, weights (out, in). float64 throughout.
"""

from collections.abc import Callable

import numpy as np

from app.interchange.source import Source
from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Relu, Resize, Sigmoid, Tanh

FUNCTIONS: dict[type[Layer], Callable[[np.ndarray], np.ndarray]] = {
    Relu: lambda x: x * (x > 0),
    Tanh: np.tanh,
    Sigmoid: lambda x: 0.5 * (1 + np.tanh(x / 2)),
}


def logits(source: Source, images: np.ndarray) -> np.ndarray:
    """Compute the scores before a softmax of images (B, C, H, W) uint8, as the network reads them: (B, classes)."""
    first = source.network.layers[0]
    x = (first.reference(images, {}) if isinstance(first, Resize) else images).astype(np.float64) * source.scale
    for layer in source.network.layers:
        if isinstance(layer, Conv2d):
            x = _convolved(x, source.arrays[layer.name].astype(np.float64), layer)
        elif isinstance(layer, Linear):
            x = np.einsum("bi,oi->bo", x, source.arrays[layer.name].astype(np.float64))
        elif isinstance(layer, MaxPool | AvgPool):
            x = _pooled(x, layer)
        elif isinstance(layer, Flatten):
            x = x.reshape(len(x), -1)
        elif type(layer) in FUNCTIONS:
            x = FUNCTIONS[type(layer)](x)
        bias = source.arrays.get(f"{layer.name}_bias")
        if bias is not None:
            x = x + bias.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))
    return x


def _convolved(x: np.ndarray, filters: np.ndarray, layer: Conv2d) -> np.ndarray:
    kernel, stride, beyond = layer.kernel, layer.stride, (layer.padding, layer.padding)
    x = np.pad(x, ((0, 0), (0, 0), beyond, beyond))
    height, width = (x.shape[2] - kernel) // stride + 1, (x.shape[3] - kernel) // stride + 1
    y = np.zeros((len(x), layer.maps, height, width))
    for p in range(kernel):
        for q in range(kernel):
            seen = x[:, :, p : p + stride * height : stride, q : q + stride * width : stride]
            y += np.einsum("bchw,mc->bmhw", seen[:, :, :height, :width], filters[:, :, p, q], optimize=True)
    return y


def _pooled(x: np.ndarray, layer: MaxPool | AvgPool) -> np.ndarray:
    height, width = layer.output_shape(x.shape[1:])[1:]
    y = np.empty((*x.shape[:2], height, width))
    for i in range(height):
        for j in range(width):
            top, left = i * layer.step, j * layer.step
            window = x[:, :, top : top + layer.window, left : left + layer.window]  # ends where the image ends
            y[:, :, i, j] = window.max(axis=(2, 3)) if layer.is_max else window.mean(axis=(2, 3))
    return y
