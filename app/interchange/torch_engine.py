"""PyTorch, to check an import: its own functions on the file's own arrays."""

import importlib.util
from importlib.metadata import version

import numpy as np

from app.interchange.source import Engine, Source
from app.layers import Activation, Conv2d, Flatten, Linear, Resize
from app.layers.pool import Pool


def engine(source: Source) -> Engine | None:
    """Return the engine, which computes in float32, or None where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None

    def run(images: np.ndarray) -> np.ndarray:
        import torch  # here: it takes seconds

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
                    pool = functional.max_pool2d if layer.is_max else functional.avg_pool2d
                    x = pool(x, layer.window, layer.step, ceil_mode=layer.ceil)
                case Activation():
                    x = getattr(torch, layer.kind)(x)
                case Flatten():
                    x = x.flatten(1)
        found: np.ndarray = x.numpy()
        return found

    return Engine(f"PyTorch {version('torch')}", run)
