"""Compute Keras' layers in NumPy on (B, H, W, C) float64, to check the layers to which ``import`` converts them."""

from collections.abc import Callable

import numpy as np

from app.interchange.layer_stack import BatchNorm

Step = Callable[[np.ndarray], np.ndarray]
ACTIVATIONS: dict[str, Step] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "tanh": np.tanh,
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
}


def leaky_relu_step(slope: float) -> Step:
    """Return a function that computes LeakyReLU of an array of any shape. slope: factor of x < 0."""
    return lambda x: np.where(x < 0, slope * x, x)


def convolution_step(kernel: np.ndarray, bias: np.ndarray | None, stride: int, padding: tuple[int, int]) -> Step:
    """Return a function that computes a convolution, (B, H, W, C) → (B, OH, OW, M).

    kernel: (K, K, C, M). bias: (M,). padding: rows before and after the image, and as many columns.
    """
    size = len(kernel)

    def convolve(x: np.ndarray) -> np.ndarray:
        x = np.pad(x, ((0, 0), padding, padding, (0, 0)))
        ends = [side - size + 1 for side in x.shape[1:3]]
        seen = (
            (x[:, row : row + ends[0] : stride, column : column + ends[1] : stride], kernel[row, column])
            for row in range(size)
            for column in range(size)
        )
        y: np.ndarray = sum(pixels @ weights.astype(np.float64) for pixels, weights in seen)
        return y if bias is None else y + bias

    return convolve


def dense_step(kernel: np.ndarray, bias: np.ndarray | None) -> Step:
    """Return a function that computes a fully connected layer, (B, in) → (B, out). kernel: (in, out). bias: (out,)."""
    return lambda x: x @ kernel.astype(np.float64) + (0 if bias is None else bias)


def pooling_step(window: int, stride: int, padding: tuple[int, int], is_max: bool) -> Step:
    """Return a function that pools maps (B, H, W, C). padding: rows before and after, which do not count."""

    def pool(x: np.ndarray) -> np.ndarray:
        x = np.pad(x, ((0, 0), padding, padding, (0, 0)), constant_values=np.nan)
        windows = np.lib.stride_tricks.sliding_window_view(x, (window, window), axis=(1, 2))[:, ::stride, ::stride]
        reduced: np.ndarray = np.nanmax(windows, axis=(4, 5)) if is_max else np.nanmean(windows, axis=(4, 5))
        return reduced

    return pool


def batch_norm_step(norm: BatchNorm) -> Step:
    """Return a function that computes a batch normalisation of (…, C) with factors for the last axis."""
    return lambda x: (x - norm.mean) / np.sqrt(norm.variance + norm.epsilon) * norm.scale + norm.shift
