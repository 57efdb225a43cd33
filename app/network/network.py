"""A network: its input, its layers with their shapes, and the scale of its pixels."""

import hashlib
from dataclasses import dataclass
from math import prod

from app.layers import Layer, Shape
from app.network.toml_writing import computation_toml

PIXEL_SCALE = 1 / 255  # bytes become numbers from 0 to 1


@dataclass(frozen=True)
class Step:
    """One layer in a network, with the shapes of one image's activations before and after it."""

    layer: Layer
    in_shape: Shape
    out_shape: Shape

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Shapes of the layer's arrays in a weights file, with every bias that there may be."""
        return self.layer.parameter_shapes(self.in_shape)

    @property
    def parameter_count(self) -> int:
        """Number of weights, without biases."""
        return sum(prod(shape) for name, shape in self.parameter_shapes.items() if not name.endswith("_bias"))

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations read and written for one image: float32, or uint8 in a layer that keeps bytes."""
        return (1 if self.layer.keeps_bytes else 4) * (prod(self.in_shape) + prod(self.out_shape))


@dataclass(frozen=True)
class Network:
    """A network: the shape of its input and its layers, the last of which is an Argmax.

    pixel_scale: the factor for pixels of 0 to 255 before the first layer with weights.
    """

    name: str
    summary: str
    input_shape: Shape  # (C, H, W) of one image
    layers: tuple[Layer, ...]
    pixel_scale: float = PIXEL_SCALE

    @property
    def steps(self) -> tuple[Step, ...]:
        """The layers with their shapes. Raises UserError if a layer does not fit those before it."""
        steps: list[Step] = []
        shape = self.input_shape
        for layer in self.layers:
            steps.append(Step(layer, shape, layer.output_shape(shape)))
            shape = steps[-1].out_shape
        return tuple(steps)

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the computation: the canonical TOML without name and summary."""
        return hashlib.sha256(self.computation.encode()).hexdigest()

    @property
    def computation(self) -> str:
        """The canonical TOML of everything but name and summary."""
        return computation_toml(self.input_shape, self.pixel_scale, PIXEL_SCALE, self.layers)
