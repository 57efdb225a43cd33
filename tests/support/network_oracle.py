"""Compute networks from their TOML text in plain float64 NumPy, with a loop over filter taps or windows.

This oracle reads the text itself and shares no code with the layers, the parser or the graph.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]  # as in a weights file: filters (K, K, in, out), matrices (in, out), biases (out)
PREFIX = {"conv2d": "conv", "linear": "fc", "avgpool": "pool", "maxpool": "pool"}  # of names that the text leaves out
UNNUMBERED = ("flatten", "resize", "softmax")


@dataclass(frozen=True)
class Described:
    """One layer as the text describes it, with the shapes of one image before and after it."""

    kind: str
    name: str
    settings: Mapping[str, Any]
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """A network as its text describes it. pixel_scale: the factor for bytes before the first layer with weights."""

    input_shape: tuple[int, ...]
    pixel_scale: float
    layers: tuple[Described, ...]


def described(text: str) -> Description:
    """Return the network that a text describes. The text must be valid."""
    document = tomllib.loads(text)
    first = shape = tuple(document["input"])
    numbers: Counter[str] = Counter()
    layers = []
    for settings in document["layers"]:
        kind = settings["type"]
        prefix = PREFIX.get(kind, kind)
        numbers[prefix] += 1
        name = settings.get("name", prefix if kind in UNNUMBERED else f"{prefix}{numbers[prefix]}")
        layers.append(Described(kind, name, settings, shape, shape_after(kind, settings, shape)))
        shape = layers[-1].out_shape
    return Description(first, float(Fraction(document.get("pixel_scale", "1/255"))), tuple(layers))


def shape_after(kind: str, settings: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a layer's output shape, (C, H, W) or (features,)."""
    if kind == "conv2d":
        kernel, stride, padding = settings["kernel"], settings.get("stride", 1), settings.get("padding", 0)
        return settings["maps"], *((length + 2 * padding - kernel) // stride + 1 for length in shape[1:])
    if kind in ("maxpool", "avgpool"):
        return shape[0], *(len(windows_along(length, settings)) for length in shape[1:])
    if kind == "resize":
        return shape[0], settings["size"], settings["size"]
    if kind == "flatten":
        return (int(np.prod(shape)),)
    return (settings["outputs"],) if kind == "linear" else shape


def windows_along(length: int, settings: Mapping[str, Any], counted: bool = False) -> list[slice]:
    """Return the pixels of each pooling window along one axis: whole windows, and with ``ceil`` those that are cut off.

    No window begins behind the image. Windows contain padding only if ``counted``.
    """
    window, padding = settings["window"], settings.get("padding", 0)
    stride = settings.get("stride", window)
    end = length + padding + settings.get("extra_padding", 0)
    starts = list(range(-padding, end - window + 1, stride))
    if settings.get("ceil", False) and starts[-1] + window < end and starts[-1] + stride < length:
        starts.append(starts[-1] + stride)
    first, last = (-padding, end) if counted else (0, length)
    return [slice(max(start, first), min(start + window, last)) for start in starts]


def parameter_shapes(layer: Described) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that a layer may have in a weights file, always including the bias."""
    if layer.kind == "conv2d":
        kernel, maps = layer.settings["kernel"], layer.settings["maps"]
        return {layer.name: (kernel, kernel, layer.shape[0], maps), f"{layer.name}_bias": (maps,)}
    if layer.kind == "linear":
        outputs = layer.settings["outputs"]
        return {layer.name: (layer.shape[0], outputs), f"{layer.name}_bias": (outputs,)}
    return {}


def scores(network: Description, arrays: Arrays, images: np.ndarray) -> np.ndarray:
    """Return the last layer's results, (B, classes) float64, for images (B, C, H, W) uint8."""
    return outputs(network, arrays, images)[-1]


def outputs(network: Description, arrays: Arrays, images: np.ndarray) -> list[np.ndarray]:
    """Return every layer's results for images (B, C, H, W) uint8: bytes from layers that resize, else float64."""
    found: list[np.ndarray] = []
    x = images
    for layer in network.layers:
        if layer.kind != "resize" and x.dtype == np.uint8:
            x = x.astype(np.float64) * network.pixel_scale
        x = computed(layer, x, arrays)
        found.append(x)
    return found


def computed(layer: Described, x: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Return one layer's result: (B, *shape) float64, or bytes to resize → (B, *out_shape)."""
    settings = layer.settings
    match layer.kind:
        case "resize":
            return resized(x, settings["size"], settings.get("rule", "edge"))
        case "conv2d" | "linear":
            y = products(layer, x, arrays[layer.name].astype(np.float64))
            bias = arrays.get(f"{layer.name}_bias")
            return y if bias is None else y + bias.astype(np.float64).reshape(-1, *(1,) * (y.ndim - 2))
        case "maxpool" | "avgpool":
            return pooled(layer, x)
        case "relu":
            return np.where(x > 0, x, 0.0)
        case "leakyrelu":
            return np.where(x > 0, x, settings.get("slope", 0.01) * x)
        case "relu6":
            return np.minimum(np.where(x > 0, x, 0.0), 6.0)
        case "tanh":
            return 1 - 2 / (np.exp(np.minimum(2 * x, 700)) + 1)
        case "sigmoid":
            return 1 / (1 + np.exp(np.minimum(-x, 700)))
        case "flatten":
            return np.moveaxis(x, 1, 3).reshape(len(x), -1)  # C innermost
        case "softmax":
            powers = np.exp(x - x.max(axis=1, keepdims=True))
            return powers / powers.sum(axis=1, keepdims=True)
    raise ValueError(f"the oracle does not know {layer.kind}")


def products(layer: Described, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sums of products of a convolution or a fully connected layer, without bias, in the type of x and w.

    A convolution adds the products of one tap after another to all maps.
    """
    if layer.kind == "linear":
        return x @ w
    maps, height, width = layer.out_shape
    stride, padding = layer.settings.get("stride", 1), layer.settings.get("padding", 0)
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    y = np.zeros((maps, len(x), height, width))
    for p in range(len(w)):
        for q in range(len(w)):
            seen = x[:, :, p : p + stride * (height - 1) + 1 : stride, q : q + stride * (width - 1) + 1 : stride]
            y += np.tensordot(w[p, q], seen, axes=(0, 1))
    return y.swapaxes(0, 1)


def pooled(layer: Described, x: np.ndarray) -> np.ndarray:
    """Return the largest number of each window, or the mean of the window's numbers inside the image."""
    window, largest = layer.settings["window"], layer.kind == "maxpool"
    stride = layer.settings.get("stride", window)
    if layer.settings.get("padding", 0) or layer.settings.get("count_padding", False):
        return _pooled_padded(layer, x, largest)
    axes = [windows_along(length, layer.settings) for length in layer.shape[1:]]
    y = np.full((len(x), *layer.out_shape), -np.inf if largest else 0.0)
    pixels = np.zeros(layer.out_shape[1:])
    for p in range(window):
        for q in range(window):
            # That pixel of all windows that have it: those that are cut off come last.
            have = tuple(
                slice(sum(at.stop - at.start > first for at in axis)) for axis, first in zip(axes, (p, q), strict=True)
            )
            seen, found = x[:, :, p::stride, q::stride][:, :, *have], y[:, :, *have]
            (np.maximum if largest else np.add)(found, seen, out=found)
            pixels[have] += 1
    return y if largest else y / pixels


def _pooled_padded(layer: Described, x: np.ndarray, largest: bool) -> np.ndarray:
    """Pool window by window; windows at both ends are cut off."""
    y = np.empty((len(x), *layer.out_shape))
    counted = layer.settings.get("count_padding", False)
    inside, divided = (
        [windows_along(length, layer.settings, counts) for length in layer.shape[1:]] for counts in (False, counted)
    )
    for i, j in np.ndindex(*layer.out_shape[1:]):
        pixels = x[:, :, inside[0][i], inside[1][j]]
        count = prod(at.stop - at.start for at in (divided[0][i], divided[1][j]))
        y[:, :, i, j] = pixels.max(axis=(2, 3)) if largest else pixels.sum(axis=(2, 3)) / count
    return y


def resized(x: np.ndarray, size: int, rule: str) -> np.ndarray:
    """Return bytes (B, C, H, W) resized to (B, C, size, size): integer products along each axis, then one rounding."""
    down, across = (resize_weights(length, size, rule) for length in x.shape[2:])
    sums = down @ x.astype(np.int64) @ across.T
    whole = 4 * size * size
    return ((sums + whole // 2 if rule == "edge" else sums) // whole).astype(np.uint8)


def resize_weights(length: int, size: int, rule: str) -> np.ndarray:
    """Return (size, length) integers: how many of 2 · size parts of each output come from each pixel of an axis.

    Output i lies at (i + 1/2) · length / size - 1/2, between two pixels. Beyond the border the rule ``edge`` repeats
    the border's pixel and ``course`` has zeros.
    """
    weights = np.zeros((size, length), np.int64)
    for i in range(size):
        at = (2 * i + 1) * length - size  # in units of 1 / (2 · size)
        left, far = at // (2 * size), at % (2 * size)
        for pixel, part in ((left, 2 * size - far), (left + 1, far)):
            if 0 <= pixel < length:
                weights[i, pixel] += part
            elif rule == "edge":
                weights[i, min(max(pixel, 0), length - 1)] += part
    return weights
