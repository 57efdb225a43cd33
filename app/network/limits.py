"""Limits of a network's numbers, and the check that its layers fit each other.

Network files are untrusted. Within these limits no size overflows, and one image fits in memory.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from app.base.errors import UserError
from app.layers import Argmax, Flatten, Layer, Resize, Shape, Softmax
from app.layers.resize import MAX_SIZE

MAX_LAYERS = 100  # the deepest networks of this family have a dozen
MAX_SIDE = MAX_SIZE  # pixels of an input's height and width, as of enlarged images
MAX_NUMBER = 99_999  # maps, units and every other number of a layer; the most hidden units of mlp_N
MAX_CLASSES = 256  # labels are bytes
CHANNELS = (1, 3)  # grey and colour images
MAX_BYTES = 256 << 20  # of a weights file
MAX_PARAMETERS = MAX_BYTES // 2  # as float16, its smallest type
MAX_ACTIVATIONS = 1 << 24  # numbers between two layers for one image: 64 MiB, and 128 of them number below 2**31
MAX_UNROLLED = 1 << 28  # numbers in all windows of a convolution for one image: the reference copies them, 2 GiB
# Limits of the pixel scale, alone or times the first weights: float32 holds it with all bits, times 255, too.
LEAST_SCALE, MOST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max) / 255


class LayerError(UserError):
    """A layer does not fit. at: its index in the network."""

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
            _check_scores(at, shape)
        if fault := _fault(at, layer, layers, weighted):
            raise LayerError(at, f"layer {layer.name} ({layer.kind}) {fault}")
        try:
            after = layer.output_shape(shape)
        except UserError as error:
            raise LayerError(at, f"{error}; change this layer or those before it") from None
        arrays = layer.parameter_shapes(shape)
        weighted = weighted or bool(arrays)
        parameters += sum(map(prod, arrays.values()))
        if parameters > MAX_PARAMETERS:
            raise LayerError(at, f"up to {layer.name} the network has {parameters:,} weights, {_limit(MAX_PARAMETERS)}")
        if len(shape) == len(after) == 3 and layer.name in arrays:
            unrolled = prod(after[1:]) * prod(arrays[layer.name][:-1])
            if unrolled > MAX_UNROLLED:
                raise LayerError(at, f"the windows of {layer.name} hold {unrolled:,} numbers, {_limit(MAX_UNROLLED)}")
        if prod(after) > MAX_ACTIVATIONS:
            raise LayerError(at, f"{layer.name} gives {prod(after):,} numbers an image, {_limit(MAX_ACTIVATIONS)}")
        shape = after


def _fault(at: int, layer: Layer, layers: Sequence[Layer], weighted: bool) -> str:
    """Return what is wrong with a layer at its position, or "". weighted: layers with weights come before it."""
    if isinstance(layer, Resize) and at > 0:
        return "reads the images, but is not the first layer: move it to the beginning"
    if isinstance(layer, Softmax) and not isinstance(layers[at + 1], Argmax):
        return "is followed by other layers: move it to the end or remove it"
    if not (weighted or isinstance(layer, Resize | Flatten) or layer.parameter_shapes((1, 1, 1))):
        # The pixel scale is multiplied into the first weights.
        return "comes before any weights: put a conv2d or linear layer before it"
    return ""


def _check_scores(at: int, shape: Shape) -> None:
    """Check the input of the final argmax."""
    if len(shape) != 1:
        raise LayerError(at, f"the network ends with maps of shape {shape}: add a flatten and a linear layer")
    if not 2 <= shape[0] <= MAX_CLASSES:
        raise LayerError(at, f"the network ends with {shape[0]:,} scores: let it end with 2 to {MAX_CLASSES} classes")


def _limit(most: int) -> str:
    return f"more than {most:,}: reduce this layer or those before it"
