"""Define a network: its input, layers, shapes and pixel scale, its text in TOML, and the check that its layers fit.

Network files are untrusted. Within the limits here, no size overflows and one image fits in memory.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from app import layers
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.layers import Argmax, Flatten, Layer, Resize, Shape, Softmax
from app.layers.resize import MAX_SIZE

# Layer type in a network file → class. The argmax, which ends every network, is not written.
KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (getattr(layers, name) for name in layers.__all__)
    if hasattr(layer, "kind") and layer is not Argmax
}
PIXEL_SCALE = 1 / 255  # maps bytes to [0, 1]
MAX_LAYERS = 100  # the deepest networks of this family have a dozen
MAX_SIDE = MAX_SIZE  # pixels of an input's height and width, as of enlarged images
MAX_NUMBER = 99_999  # maps, units and every other number of a layer; the most hidden units of mlp_N
MAX_CLASSES = 256  # labels are bytes
CHANNELS = (1, 3)  # grey and colour images
MAX_BYTES = 256 << 20  # of a weights file
MAX_PARAMETERS = MAX_BYTES // 2  # as float16, its smallest type
MAX_ACTIVATIONS = 1 << 24  # numbers between two layers for one image: 64 MiB; for 128 images fewer than 2**31
MAX_UNROLLED = 1 << 28  # numbers in all windows of a convolution for one image: the reference copies them, 2 GiB
# Limits of the pixel scale, alone or times the first weights: float32 holds it with all bits, times 255, too.
LEAST_SCALE, MOST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max) / 255
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


def key_defaults(layer: Layer | type[Layer]) -> dict[str, Any]:
    """Return the default of each key of a layer (each field of its class but ``name``), MISSING if it has none."""
    return {one.name: one.default for one in fields(layer) if one.name != "name"}


def non_default_settings(layer: Layer) -> dict[str, Any]:
    """Return a layer's settings by key, except those at their default, in the order of its fields."""
    return {key: getattr(layer, key) for key, default in key_defaults(layer).items() if getattr(layer, key) != default}


def toml_assignments(values: Mapping[str, Any]) -> str:
    """Return TOML lines ``key = value``, for numbers, booleans, lists and strings without control characters."""
    # For these values, TOML's notation is that of JSON.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


class LayerStep(Frozen):
    """A layer in a network, with the shapes of one image's activations before and after it."""

    layer: Layer
    in_shape: Shape
    out_shape: Shape

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the layer's arrays in a weights file, optional biases included."""
        return self.layer.parameter_shapes(self.in_shape)

    @property
    def activation_bytes(self) -> int:
        """Return bytes of activations read and written per image: float32, or uint8 in a layer such as Resize."""
        return (1 if self.layer.keeps_bytes else 4) * (prod(self.in_shape) + prod(self.out_shape))


class Network(Frozen):
    """A network: its input shape and its layers, of which the last is an Argmax.

    pixel_scale: factor for pixels from 0 to 255, applied before the first layer with weights.
    """

    name: str
    summary: str
    input_shape: Shape  # (C, H, W) of one image
    layers: tuple[Layer, ...]
    pixel_scale: float = PIXEL_SCALE

    @property
    def steps(self) -> tuple[LayerStep, ...]:
        """Return the layers with their shapes. Raises UserError if a layer does not fit those before it."""
        steps: list[LayerStep] = []
        shape = self.input_shape
        for layer in self.layers:
            steps.append(LayerStep(layer, shape, layer.output_shape(shape)))
            shape = steps[-1].out_shape
        return tuple(steps)

    @property
    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of ``canonical_toml``."""
        return hashlib.sha256(self.canonical_toml.encode()).hexdigest()

    @property
    def canonical_toml(self) -> str:
        """Return canonical TOML of everything except name and summary, for files and digests.

        It omits settings at their default, so a setting that layers get later does not change existing texts.
        """
        head: dict[str, Any] = {"input": list(self.input_shape)}
        if self.pixel_scale != PIXEL_SCALE:
            head["pixel_scale"] = float(self.pixel_scale)
        written = (layer for layer in self.layers if not isinstance(layer, Argmax))
        tables = ({"type": layer.kind, "name": layer.name, **non_default_settings(layer)} for layer in written)
        return toml_assignments(head) + "".join(f"\n[[layers]]\n{toml_assignments(table)}" for table in tables)


class LayerError(UserError):
    """The layer with index ``at`` does not fit the network."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text)
        self.at = at


def check_layers(input_shape: Shape, layers: Sequence[Layer]) -> None:
    """Raise LayerError for the first layer that does not fit. The last must be an Argmax."""
    shape, parameters, weighted = input_shape, 0, False
    names: set[str] = set()
    for at, layer in enumerate(layers):
        if layer.name in names:
            raise LayerError(at, f"a second layer is named {layer.name}: give each layer its own name")
        names.add(layer.name)
        if isinstance(layer, Argmax) and at == len(layers) - 1:
            _check_scores_shape(at, shape)
        if fault := _layer_fault(at, layer, layers, weighted):
            raise LayerError(at, f"layer {layer.name} ({layer.kind}) {fault}")
        try:
            after = layer.output_shape(shape)
        except UserError as error:
            raise LayerError(at, f"{error}; change this layer or those before it") from None
        arrays = layer.parameter_shapes(shape)
        weighted = weighted or bool(arrays)
        parameters += sum(map(prod, arrays.values()))
        _check_limit(at, f"up to {layer.name} the network has", parameters, "weights", MAX_PARAMETERS)
        if len(shape) == len(after) == 3 and layer.name in arrays:
            unrolled = prod(after[1:]) * prod(arrays[layer.name][:-1])
            _check_limit(at, f"the windows of {layer.name} hold", unrolled, "numbers", MAX_UNROLLED)
        _check_limit(at, f"{layer.name} gives", prod(after), "numbers an image", MAX_ACTIVATIONS)
        shape = after


def _layer_fault(at: int, layer: Layer, layers: Sequence[Layer], weighted: bool) -> str:
    """Return what is wrong with a layer at index ``at``, or "". weighted: whether earlier layers have weights."""
    if isinstance(layer, Resize) and at > 0:
        return "reads the images, but is not the first layer: move it to the beginning"
    if isinstance(layer, Softmax) and not isinstance(layers[at + 1], Argmax):
        return "is followed by other layers: move it to the end or remove it"
    if not (weighted or isinstance(layer, Resize | Flatten) or layer.parameter_shapes((1, 1, 1))):
        # The pixel scale is multiplied into the first weights.
        return "comes before any weights: put a conv2d or linear layer before it"
    return ""


def _check_scores_shape(at: int, shape: Shape) -> None:
    """Raise LayerError unless ``shape`` is a valid input of the final argmax."""
    if len(shape) != 1:
        raise LayerError(at, f"the network ends with maps of shape {shape}: add a flatten and a linear layer")
    if not 2 <= shape[0] <= MAX_CLASSES:
        raise LayerError(at, f"the network ends with {shape[0]:,} scores: let it end with 2 to {MAX_CLASSES} classes")


def _check_limit(at: int, what: str, count: int, unit: str, most: int) -> None:
    """Raise LayerError if ``count`` is above ``most``. what, unit: the words before and after the count."""
    if count > most:
        raise LayerError(at, f"{what} {count:,} {unit}, more than {most:,}: reduce this layer or those before it")
