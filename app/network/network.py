"""A network: its input, layers, shapes and pixel scale, and its text in TOML."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import prod
from typing import Any

from app import layers
from app.base.frozen import Frozen
from app.layers import Argmax, Layer, Shape

# Layer type in a network file → class. The argmax, which ends every network, is not written.
KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (getattr(layers, name) for name in layers.__all__)
    if hasattr(layer, "kind") and layer is not Argmax
}
PIXEL_SCALE = 1 / 255  # maps bytes to [0, 1]
_SHORT = {"conv2d": "conv", "avgpool": "pool", "maxpool": "pool", "linear": "fc"}
_SINGLE = ("flatten", "resize", "softmax")  # at most one of each in a network, so named without a number


def default_names(kinds: Iterable[str]) -> list[str]:
    """Return default names for layers of these kinds: ``conv1``, ``relu1``, ``pool1``, ``flatten``."""
    counts: dict[str, int] = {}
    names = []
    for kind in kinds:
        short = _SHORT.get(kind, kind)
        counts[short] = counts.get(short, 0) + 1
        names.append(short if kind in _SINGLE else f"{short}{counts[short]}")
    return names


def defaults_of(layer: Layer | type[Layer]) -> dict[str, Any]:
    """Return a layer's keys (the fields of its class but the name) with their defaults, MISSING without one."""
    return {one.name: one.default for one in fields(layer) if one.name != "name"}


def settings_of(layer: Layer) -> dict[str, Any]:
    """Return a layer's settings by key, without those at their default, in the order of its fields."""
    return {key: getattr(layer, key) for key, default in defaults_of(layer).items() if getattr(layer, key) != default}


def assignments(values: Mapping[str, Any]) -> str:
    """Write ``key = value`` lines: whole numbers, floats, strings without control characters, booleans and lists."""
    # For these values, TOML's notation is that of JSON.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


class LayerStep(Frozen):
    """A layer in a network, with the shapes of one image's activations before and after it."""

    layer: Layer
    in_shape: Shape
    out_shape: Shape

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Shapes of the layer's arrays in a weights file, optional biases included."""
        return self.layer.parameter_shapes(self.in_shape)

    @property
    def parameter_count(self) -> int:
        """Number of weights, without biases."""
        return sum(prod(shape) for name, shape in self.parameter_shapes.items() if not name.endswith("_bias"))

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations read and written for one image: float32, or uint8 in a layer that keeps bytes."""
        return (1 if self.layer.keeps_bytes else 4) * (prod(self.in_shape) + prod(self.out_shape))


class Network(Frozen):
    """A network: its input shape and its layers, the last of which is an Argmax.

    pixel_scale: factor of pixels 0 to 255 before the first layer with weights.
    """

    name: str
    summary: str
    input_shape: Shape  # (C, H, W) of one image
    layers: tuple[Layer, ...]
    pixel_scale: float = PIXEL_SCALE

    @property
    def steps(self) -> tuple[LayerStep, ...]:
        """The layers with their shapes. Raises UserError if a layer does not fit those before it."""
        steps: list[LayerStep] = []
        shape = self.input_shape
        for layer in self.layers:
            steps.append(LayerStep(layer, shape, layer.output_shape(shape)))
            shape = steps[-1].out_shape
        return tuple(steps)

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of ``computation``."""
        return hashlib.sha256(self.computation.encode()).hexdigest()

    @property
    def computation(self) -> str:
        """Canonical TOML of everything but name and summary, for files and digests.

        Settings at their default are left out, so a setting that layers get later does not change existing texts.
        """
        head: dict[str, Any] = {"input": list(self.input_shape)}
        if self.pixel_scale != PIXEL_SCALE:
            head["pixel_scale"] = float(self.pixel_scale)
        written = (layer for layer in self.layers if not isinstance(layer, Argmax))
        tables = ({"type": layer.kind, "name": layer.name, **settings_of(layer)} for layer in written)
        return assignments(head) + "".join(f"\n[[layers]]\n{assignments(table)}" for table in tables)
