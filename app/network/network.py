"""A network: its input, its layers and the scale of its pixels."""

import hashlib
from dataclasses import dataclass

from app.layers import Layer, Shape
from app.network.toml_writing import computation_toml

PIXEL_SCALE = 1 / 255  # bytes become numbers from 0 to 1


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
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the computation: the canonical TOML without name and summary."""
        return hashlib.sha256(self.computation.encode()).hexdigest()

    @property
    def computation(self) -> str:
        """The canonical TOML of everything but name and summary."""
        return computation_toml(self.input_shape, self.pixel_scale, PIXEL_SCALE, self.layers)
