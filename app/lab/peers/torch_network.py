"""Build a network from PyTorch modules, for comparison with the application."""

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.layers import Activation, AvgPool, Conv2d, Flatten, LeakyRelu, Linear, Resize, Shape, Softmax
from app.layers.flatten import channels_first_permutation
from app.layers.pool import Pool
from app.network.graph import Graph
from app.network.network import LayerStep


def make_classifier(graph: Graph, torch: Any, *, half: bool, channels_last: bool, device: str) -> Callable[[Any], Any]:
    """Return a function from images (N, C, H, W) uint8 to labels (N,) uint8.

    half: compute in float16. channels_last: memory layout of activations. Raises UserError for an unknown layer.
    """
    dtype = torch.float16 if half else torch.float32
    layout = torch.channels_last if channels_last else torch.contiguous_format
    scale = graph.input_scale
    front = torch.nn.Sequential(
        *(_resize_module(step, torch, device) for step in graph.steps[: graph.pixel_scale_step])
    )
    body = torch.nn.Sequential(*_network_modules(graph, torch, dtype=dtype, channels_last=channels_last, device=device))

    def classify(images: Any) -> Any:
        x = front(images).to(dtype, memory_format=layout) * scale
        return body(x).argmax(1).to(torch.uint8)

    return classify


def _resize_module(step: LayerStep, torch: Any, device: str) -> Any:
    """Return a module that resizes images by PyTorch's interpolation, whose float errors may round halves otherwise.

    The resizing rule ``course`` truncates, so float errors could change pixels by 1: it uses exact integers instead.
    """
    layer = step.layer
    if not isinstance(layer, Resize):
        raise UserError(f"layer {layer.name} ({layer.kind}) cannot be built in PyTorch here")
    size, divisor = layer.size, layer.divisor
    rows, columns = (
        [torch.from_numpy(part).to(device) for part in layer.neighbours(length)] for length in step.in_shape[1:]
    )

    class Enlarge(torch.nn.Module):
        def forward(self, images: Any) -> Any:
            x = torch.nn.functional.interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)
            return x.add_(0.5).floor_()

    class EnlargeExactly(torch.nn.Module):
        def forward(self, images: Any) -> Any:
            x = images.int()
            low, high, near, far = columns
            x = x[:, :, :, low] * near + x[:, :, :, high] * far
            low, high, near, far = rows
            x = x[:, :, low] * near[:, None] + x[:, :, high] * far[:, None]
            return x.div(divisor, rounding_mode="floor").float()

    return Enlarge() if layer.rule == "edge" else EnlargeExactly()


def _network_modules(graph: Graph, torch: Any, *, dtype: Any, channels_last: bool, device: str) -> Iterator[Any]:
    """Yield the network's modules from the scaled pixels to the scores, without the final argmax."""
    nn = torch.nn

    class FlattenChannelsLast(torch.nn.Module):
        """Flattens (N, C, H, W) features in H, W, C order, the memory order of channels-last activations."""

        def forward(self, x: Any) -> Any:
            return x.permute(0, 2, 3, 1).flatten(1)

    def fill_parameters(module: Any, name: str, weights: np.ndarray) -> Any:
        """Return the module with these weights and, if the layer ``name`` has one, its bias."""
        tensor = torch.from_numpy(np.ascontiguousarray(weights)).to(device, dtype)
        if channels_last and tensor.ndim == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        module.weight = nn.Parameter(tensor, requires_grad=False)
        bias = graph.parameters.get(f"{name}_bias")
        if bias is not None:
            module.bias = nn.Parameter(torch.from_numpy(bias).to(device, dtype), requires_grad=False)
        return module

    activations = {"relu": nn.ReLU, "relu6": nn.ReLU6, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
    flattened: Shape | None = None
    for step in graph.steps[graph.pixel_scale_step : -1]:
        layer, inputs = step.layer, step.in_shape[0]
        has_bias = f"{layer.name}_bias" in graph.parameters
        match layer:
            case Conv2d():
                sizes = layer.maps, layer.kernel, layer.stride, layer.padding
                conv = nn.Conv2d(inputs, *sizes, bias=has_bias, device="meta")
                yield fill_parameters(conv, layer.name, graph.parameters[layer.name].transpose(3, 2, 0, 1))
            case Linear():
                weights = graph.parameters[layer.name]
                if flattened is not None and not channels_last:  # features arrive in C, H, W order
                    weights = weights[channels_first_permutation(flattened)]
                flattened = None
                yield fill_parameters(
                    nn.Linear(inputs, layer.outputs, bias=has_bias, device="meta"), layer.name, weights.T
                )
            case Pool() if not layer.extra_padding and 2 * layer.padding <= layer.window:  # PyTorch supports no others
                rule = layer.window, layer.effective_stride, layer.padding
                if isinstance(layer, AvgPool):
                    yield nn.AvgPool2d(*rule, ceil_mode=layer.ceil, count_include_pad=layer.count_padding)
                else:
                    yield nn.MaxPool2d(*rule, ceil_mode=layer.ceil)
            case Activation() if layer.kind in activations:
                yield activations[layer.kind]()
            case LeakyRelu():
                yield nn.LeakyReLU(layer.slope)
            case Flatten():
                flattened = step.in_shape
                yield FlattenChannelsLast() if channels_last else nn.Flatten()
            case Softmax():
                yield nn.Softmax(1)
            case _:
                raise UserError(f"layer {layer.name} ({layer.kind}) cannot be built in PyTorch here")


def clone_function(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a copy of the function with a code object of its own.

    torch.compile searches all compiled versions of a code object, so versions for other modes and precisions would slow
    down every call.
    """
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__
    )
