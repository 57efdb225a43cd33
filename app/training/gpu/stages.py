"""The layers on the device, forward and backward. Arrays are allocated once, for the largest batch.

app/training/gradients.py defines what a stage computes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from app.cuda.memory import device_array
from app.kernels.launch import Kernel, Launch
from app.kernels.registry import eligible
from app.layers import Activation, Conv2d, Layer, Linear, Shape
from app.layers.pool import Pool
from app.training.gpu.arena import Layout
from app.training.gpu.kernels import ActivationGradient, ColumnSums, Dropout, PoolGradient, Transpose
from app.training.gpu.products import ConvFilterGradient, ConvForward, ConvInputGradient, ConvSizes, Gemm
from app.training.random_bits import Use, stream_key


@dataclass(frozen=True)
class Site:
    """What all stages share. images: the most in a batch; parameters, gradients: arenas."""

    arch: str
    images: int
    layout: Layout
    parameters: Any
    gradients: Any

    def activations(self, shape: Shape) -> Any:
        """An array for a batch's activations; shape: of one image's."""
        return device_array(self.images * prod(shape), "float32")

    def views(self, name: str) -> tuple[Any, Any]:
        """Flat views of a parameter and its gradient; None for both if there is no such parameter."""
        return self.layout.view(self.parameters, name), self.layout.view(self.gradients, name)


@dataclass(frozen=True)
class Batch:
    """A batch. items: indices of its images, int32 on the device; epoch: 0 for evaluation, where nothing is random."""

    stream: Any
    items: Any
    images: int
    epoch: int


class Stage(Protocol):
    """One layer, or two that are computed in one pass. y: its output."""

    y: Any

    def forward(self, batch: Batch) -> None:
        """Enqueue y from the output of the stage before."""

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """Enqueue the gradients by parameters, into their arena, and the one by the stage's input if it is ``wanted``.

        Returns the array that then holds the latter: dx, or dy if it was computed in place.
        """


class Product(ABC):
    """A layer with weights, and the activation behind it if ``function`` names one.

    slope: whether this stage's backward applies the activation's slope, or the next stage's does.
    """

    def __init__(self, site: Site, name: str, x: Any, shape: Shape, function: str, slope: bool) -> None:
        """shape: of an image's output."""
        self.x, self.y = x, site.activations(shape)
        self.w, self.dw = site.views(name)
        self.bias, self._dbias = site.views(f"{name}_bias")
        self._slope = ActivationGradient(site.arch, prod(shape), function) if function and slope else None
        self._sums = None if self.bias is None else ColumnSums(site.arch, site.images, shape[0], prod(shape[1:]))

    @abstractmethod
    def forward(self, batch: Batch) -> None:
        """As ``Stage`` defines."""

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """As ``Stage`` defines."""
        if self._slope is not None:
            self._slope(batch.stream, self.y, dy, batch.images)
        if self._sums is not None:
            self._sums(batch.stream, dy, self._dbias, batch.images)
        self._weights(batch, dy)
        if wanted:
            self._input(batch, dy, dx)
        return dx

    @abstractmethod
    def _weights(self, batch: Batch, dy: Any) -> None:
        """dw from x and dy."""

    @abstractmethod
    def _input(self, batch: Batch, dy: Any, dx: Any) -> None:
        """dx from dy and w."""


class LinearStage(Product):
    """A fully connected layer: three matrix products, two with transposes."""

    def __init__(self, site: Site, layer: Linear, shape: Shape, x: Any, function: str, slope: bool) -> None:
        super().__init__(site, layer.name, x, layer.output_shape(shape), function, slope)
        self._inputs, self._outputs = shape[0], layer.outputs
        self._y = Gemm(site.arch, bias=self.bias is not None, activation=function)
        self._dw = Gemm(site.arch, transpose_a=True)
        self._dx = Gemm(site.arch, transpose_b=True)

    def forward(self, batch: Batch) -> None:
        """y = f(x w + bias)."""
        sizes = batch.images, self._outputs, self._inputs
        self._y(batch.stream, self.x, self.w, self.y, *sizes, bias=self.bias)

    def _weights(self, batch: Batch, dy: Any) -> None:
        self._dw(batch.stream, self.x, dy, self.dw, self._inputs, self._outputs, batch.images)

    def _input(self, batch: Batch, dy: Any, dx: Any) -> None:
        self._dx(batch.stream, dy, self.w, dx, batch.images, self._inputs, self._outputs)


class ConvStage(Product):
    """A convolution: an implicit matrix product each way."""

    def __init__(self, site: Site, layer: Conv2d, shape: Shape, x: Any, function: str, slope: bool) -> None:
        super().__init__(site, layer.name, x, layer.output_shape(shape), function, slope)
        channels, height, width = shape
        sizes = ConvSizes(channels, height, width, layer.maps, layer.kernel, layer.stride)
        self._y = ConvForward(site.arch, sizes, bias=self.bias is not None, activation=function)
        self._dw = ConvFilterGradient(site.arch, sizes)
        self._dx = ConvInputGradient(site.arch, sizes)

    def forward(self, batch: Batch) -> None:
        """y = f(x * w + bias)."""
        self._y(batch.stream, self.x, self.w, self.y, batch.images, bias=self.bias)

    def _weights(self, batch: Batch, dy: Any) -> None:
        self._dw(batch.stream, self.x, dy, self.dw, batch.images)

    def _input(self, batch: Batch, dy: Any, dx: Any) -> None:
        self._dx(batch.stream, dy, self.w, dx, batch.images)


class PoolStage:
    """Pooling; backward also covers the activation directly before it, named by ``function`` unless that is empty."""

    def __init__(self, site: Site, layer: Pool, shape: Shape, x: Any, function: str) -> None:
        self.x, self.y = x, site.activations(layer.output_shape(shape))
        self._forward = inference_launch(site, layer, shape, x, self.y, "float32")
        self._gradient = PoolGradient(site.arch, layer, shape, function)

    def forward(self, batch: Batch) -> None:
        """Enqueue y with the kernel that inference uses."""
        self._forward(batch.stream.ptr, batch.images)

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """As ``Stage`` defines."""
        self._gradient(batch.stream, self.x, self.y, dy, dx, batch.images)
        return dx


class ActivationStage:
    """An activation that does not follow a product directly. slope: as for ``Product``."""

    def __init__(self, site: Site, layer: Activation, shape: Shape, x: Any, slope: bool) -> None:
        self.y = site.activations(shape)
        self._forward = inference_launch(site, layer, shape, x, self.y, "float32")
        self._slope = ActivationGradient(site.arch, prod(shape), layer.function) if slope else None

    def forward(self, batch: Batch) -> None:
        """Enqueue y with the kernel that inference uses."""
        self._forward(batch.stream.ptr, batch.images)

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """As ``Stage`` defines, in place."""
        if self._slope is not None:
            self._slope(batch.stream, self.y, dy, batch.images)
        return dy


class FlattenStage:
    """Transpose (C, H, W) to (H, W, C) and back; nothing to do if the order is the same."""

    def __init__(self, site: Site, shape: Shape, x: Any) -> None:
        channels, pixels = shape[0], prod(shape[1:])
        self.x = self.y = x
        self._moves = channels > 1 and pixels > 1
        if self._moves:
            self.y = site.activations(shape)
            self._there = Transpose(site.arch, channels, pixels)
            self._back = Transpose(site.arch, pixels, channels)

    def forward(self, batch: Batch) -> None:
        """Enqueue y (B, H·W·C)."""
        if self._moves:
            self._there(batch.stream, self.x, self.y, batch.images)

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """As ``Stage`` defines."""
        if not self._moves:
            return dy
        self._back(batch.stream, dy, dx, batch.images)
        return dx


class DropoutStage:
    """Dropout before a layer; a copy in evaluation. part: its number among the network's dropouts."""

    def __init__(self, site: Site, features: int, x: Any, share: float, seed: int, part: int) -> None:
        self.x, self.y = x, site.activations((features,))
        self._share, self._seed, self._part = share, seed, part
        self._function = Dropout(site.arch, features)

    def forward(self, batch: Batch) -> None:
        """Enqueue y; not in place: the activation before it still needs its output."""
        self._thin(batch, self.x, self.y)

    def backward(self, batch: Batch, dy: Any, dx: Any, wanted: bool) -> Any:
        """As ``Stage`` defines, in place, with the same mask."""
        self._thin(batch, dy, dy)
        return dy

    def _thin(self, batch: Batch, x: Any, y: Any) -> None:
        key = stream_key(self._seed, Use.DROPOUT, part=self._part, epoch=batch.epoch)
        share = self._share if batch.epoch else 0.0
        self._function(batch.stream, x, y, batch.items, batch.images, key, share)


def inference_launch(site: Site, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Launch:
    """Bind the registry's kernel for a layer without parameters to arrays of ``dtype``."""
    problem = layer.problem(shape, (), bias=False, input_dtype=dtype, dtype="float32", output_dtype=dtype)
    assert problem is not None and layer.operation is not None, f"{layer.kind} is a pass of its own"
    variant = eligible(layer.operation, problem, site.arch)[0]
    return Kernel(variant, problem, site.arch).bind([x, y], site.images)
