"""Compute the scores of an imported network a second time to check it: by NumPy, PyTorch or ONNX Runtime."""

import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from math import prod
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import format_for_error
from app.interchange.source import Engine, Source
from app.layers import (
    Activation,
    AvgPool,
    Conv2d,
    Flatten,
    Layer,
    LeakyRelu,
    Linear,
    MaxPool,
    Relu,
    Relu6,
    Resize,
    Sigmoid,
    Tanh,
)
from app.layers.pool import Pool

MAX_BATCH = 1000
FUNCTIONS: dict[type[Layer], Callable[[np.ndarray], np.ndarray]] = {
    Relu: lambda x: x * (x > 0),
    Relu6: lambda x: np.minimum(x * (x > 0), 6),
    Tanh: np.tanh,
    Sigmoid: lambda x: 0.5 * (1 + np.tanh(x / 2)),
}


def numpy_logits(source: Source, images: np.ndarray) -> np.ndarray:
    """Return the scores before a softmax, (B, classes) float64, of images (B, C, H, W) uint8 of the network's size.

    The computation follows textbook formulas in the layout of a ``Source``, and shares no code with the layers'
    references: filters are (M, C, K, K), features are flattened in C, H, W order, weights are (out, in).
    """
    first = source.network.layers[0]
    x = (first.reference(images, {}) if isinstance(first, Resize) else images).astype(np.float64) * source.scale
    for layer in source.network.layers:
        if isinstance(layer, Conv2d):
            x = _convolve(x, source.arrays[layer.name].astype(np.float64), layer)
        elif isinstance(layer, Linear):
            x = np.einsum("bi,oi->bo", x, source.arrays[layer.name].astype(np.float64))
        elif isinstance(layer, MaxPool | AvgPool):
            x = _pool_windows(x, layer)
        elif isinstance(layer, Flatten):
            x = x.reshape(len(x), -1)
        elif isinstance(layer, LeakyRelu):
            x = x * (x > 0) + layer.slope * x * (x < 0)
        elif type(layer) in FUNCTIONS:
            x = FUNCTIONS[type(layer)](x)
        bias = source.arrays.get(f"{layer.name}_bias")
        if bias is not None:
            x = x + bias.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))
    return x


def _convolve(x: np.ndarray, filters: np.ndarray, layer: Conv2d) -> np.ndarray:
    kernel, stride, padding = layer.kernel, layer.stride, (layer.padding, layer.padding)
    x = np.pad(x, ((0, 0), (0, 0), padding, padding))
    height, width = (x.shape[2] - kernel) // stride + 1, (x.shape[3] - kernel) // stride + 1
    y = np.zeros((len(x), layer.maps, height, width))
    for p in range(kernel):
        for q in range(kernel):
            seen = x[:, :, p : p + stride * height : stride, q : q + stride * width : stride]
            y += np.einsum("bchw,mc->bmhw", seen[:, :, :height, :width], filters[:, :, p, q], optimize=True)
    return y


def _pool_windows(x: np.ndarray, layer: MaxPool | AvgPool) -> np.ndarray:
    height, width = layer.output_shape(x.shape[1:])[1:]
    y = np.empty((*x.shape[:2], height, width))
    for i in range(height):
        for j in range(width):
            starts = [at * layer.effective_stride - layer.padding for at in (i, j)]
            ends = [start + layer.window for start in starts]
            rows, columns = (slice(max(start, 0), end) for start, end in zip(starts, ends, strict=True))
            window = x[:, :, rows, columns]  # without the padding
            y[:, :, i, j] = window.max(axis=(2, 3)) if layer.is_max else window.mean(axis=(2, 3))
            if isinstance(layer, AvgPool) and layer.count_padding:
                behind = layer.padding + layer.extra_padding
                sides = zip(starts, ends, x.shape[2:], strict=True)
                counts = [min(end, size + behind) - start for start, end, size in sides]
                y[:, :, i, j] = window.sum(axis=(2, 3)) / prod(counts)
    return y


def torch_engine(source: Source) -> Engine | None:
    """Return an engine that computes the source's network by PyTorch in float32; None if PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None

    def compute_logits(images: np.ndarray) -> np.ndarray:
        import torch  # not at the top, because the import takes seconds

        functional = torch.nn.functional
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in source.arrays.items()}
        x = images
        for layer in source.network.layers:
            if isinstance(layer, Resize):
                x = layer.reference(x, {})
        x = torch.from_numpy(x).to(torch.float32) * source.scale
        for layer in source.network.layers:
            weights, bias = tensors.get(layer.name), tensors.get(f"{layer.name}_bias")
            match layer:
                case Conv2d():
                    x = functional.conv2d(x, weights, bias, layer.stride, layer.padding)
                case Linear():
                    x = functional.linear(x, weights, bias)
                case Pool():
                    shape, rule = tuple(x.shape[1:]), (layer.window, layer.effective_stride)
                    beyond = [size for sides in reversed(layer.window_overhangs(shape)) for size in sides]
                    x = functional.pad(x, beyond, value=-np.inf if layer.is_max else 0.0)
                    if layer.is_max:
                        x = functional.max_pool2d(x, *rule)
                    else:
                        counts = torch.from_numpy(layer.window_pixel_counts(shape)).to(x.dtype)
                        x = functional.avg_pool2d(x, *rule, divisor_override=1) / counts
                case LeakyRelu():
                    x = functional.leaky_relu(x, layer.slope)
                case Activation():
                    x = getattr(functional if layer.kind == "relu6" else torch, layer.kind)(x)
                case Flatten():
                    x = x.flatten(1)
        found: np.ndarray = x.numpy()
        return found

    return Engine(f"PyTorch {version('torch')}", compute_logits)


def onnx_engine(model: Any, logits: str, to_input: Callable[[np.ndarray], np.ndarray], batch: int = 0) -> Engine | None:
    """Return an engine that runs the ONNX model, or None if ONNX Runtime is missing or ``batch`` is above 1,000.

    logits: name of the tensor before a softmax; the model gets it as a further output. to_input: function that converts
    images (B, C, H, W) uint8 to the model's input. batch: the only number of images that the model accepts; 0 if it
    accepts any number.
    """
    if batch > MAX_BATCH:
        return None
    try:
        import onnxruntime
        from onnx import helper
    except ImportError:
        return None
    if logits not in {one.name for one in model.graph.output}:
        model.graph.output.append(helper.make_tensor_value_info(logits, 1, None))
    content = model.SerializeToString()  # the model itself, twice as large, is not kept

    def compute_logits(images: np.ndarray) -> np.ndarray:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.disable_prepacking", "1")  # prepacking would copy the weights
        try:
            session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
            name = session.get_inputs()[0].name
            size = batch or len(images)
            repeated = np.arange(-(-len(images) // size) * size).reshape(-1, size) % len(images)
            found = [session.run([logits], {name: to_input(images[chunk])})[0] for chunk in repeated]
        except Exception as error:  # ONNX Runtime has an exception type for each kind of fault
            raise UserError(
                f"the model does not run in ONNX Runtime: {format_for_error(str(error))}; export it again"
            ) from None
        return np.concatenate(found)[: len(images)]

    return Engine(f"ONNX Runtime {onnxruntime.__version__}", compute_logits)
