"""Build a network from the chain of layers that a reader found in a file of another system."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.checks import BadValueError
from app.layers import Argmax, Conv2d, Layer, Linear, Resize, Shape
from app.layers.pool import Pool
from app.layers.resize import MAX_SIZE
from app.network.definitions import Network
from app.network.network import default_names
from app.network.toml import network_toml, parse_network

IMAGE = 28  # height and width of Fashion-MNIST's images


Arrays = dict[str, np.ndarray]


@dataclass
class FoundLayer:
    """A layer without a name. arrays: "" → weights, "_bias" → bias. origins: the same keys → name in the file."""

    layer: Layer
    arrays: Arrays = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def assemble_network(
    found: Sequence[FoundLayer], name: str, summary: str, image: Shape, pixel_scale: float
) -> tuple[Network, Arrays, dict[str, str]]:
    """Give the layers default names such as conv1; return the network, its arrays, and their names in the file.

    Both dictionaries have the array's name in the network as key. The network ends with an added argmax. image: shape
    (C, H, W). pixel_scale: factor of pixel bytes. Raises BadValueError for a network that no file may define.
    """
    names = default_names(one.layer.kind for one in found)
    named = [*zip(names, found, strict=True)]
    layers = (*(replace(one.layer, name=layer) for layer, one in named), Argmax("argmax"))
    try:
        network = parse_network(network_toml(Network(name, summary, image, layers, pixel_scale)), "its network")
    except UserError as error:
        raise BadValueError(f"has a network that cannot be: {error}") from None
    arrays = {layer + end: array for layer, one in named for end, array in one.arrays.items()}
    return network, arrays, {layer + end: path for layer, one in named for end, path in one.origins.items()}


class Chain(Frozen):
    """The layers of another system's network, from the enlarged image, whose size is unknown, to the scores.

    names: array name in this program → name in the file. notes: what the reader assumed.
    """

    layers: tuple[Layer, ...]
    names: dict[str, str]
    notes: tuple[str, ...] = ()


def network_from_chain(
    chain: Chain, name: str, summary: str, channels: int, features: int | None, size: int | None
) -> Network:
    """Return the network of a chain, with images of ``channels`` channels scaled to ``size`` x ``size`` pixels.

    features: number of inputs of the first fully connected layer, None without one. size: None to find the only size
    with which this layer has so many inputs; if several do, the only one of them that leaves no row or column unread.
    Raises BadValueError, which asks for ``--size``, if no size or several sizes fit.
    """
    if size is None:
        size = _unique_image_size(chain.layers, channels, features)
    elif features is not None and _flattened_feature_count(chain.layers, channels, size) != features:
        found = _flattened_feature_count(chain.layers, channels, size)
        gives = "is too small for its layers" if found is None else f"gives its first fully connected layer {found:,}"
        raise BadValueError(f"needs {features:,} features, and --size {size} {gives}; correct --size")
    resize = () if size == IMAGE else (Resize("resize", size),)
    layers = (*resize, *chain.layers, Argmax("argmax"))
    return with_mini_dnn_preprocessing(Network(name, summary, (channels, IMAGE, IMAGE), layers))


def with_mini_dnn_preprocessing(network: Network) -> Network:
    """Return the network with the preprocessing for which mini-dnn and MXNet weights are trained (``--rule course``).

    Resizing counts pixels beyond the border as zeros, and pixels stay numbers from 0 to 255.
    """
    layers = tuple(replace(layer, rule="course") if isinstance(layer, Resize) else layer for layer in network.layers)
    return replace(network, layers=layers, pixel_scale=1.0)


def _unique_image_size(layers: Sequence[Layer], channels: int, features: int | None) -> int:
    if features is None:
        raise BadValueError("has no fully connected layer, from which the images' size would follow; give --size")
    sizes = []
    for size in range(1, MAX_SIZE + 1):
        found = _flattened_feature_count(layers, channels, size) or 0
        if found > features:  # a larger image never gives fewer features
            break
        sizes += [size] if found == features else []
    whole = [size for size in sizes if not _leaves_pixels_unread(layers, channels, size)]
    fitting = whole or sizes
    if len(fitting) != 1:
        which = ", ".join(map(str, fitting)) or f"none up to {MAX_SIZE:,}"
        raise BadValueError(
            f"needs {features:,} features before its first fully connected layer, which images of size "
            f"{which} give; give --size"
        )
    return fitting[0]


def _shapes_before_layers(layers: Sequence[Layer], channels: int, size: int) -> list[Shape] | None:
    """Return each layer's input shape, up to the first fully connected layer; None if the images are too small."""
    shapes: list[Shape] = [(channels, size, size)]
    for layer in layers:
        if isinstance(layer, Linear):
            break
        try:
            shapes.append(layer.output_shape(shapes[-1]))
        except UserError:
            return None
    return shapes


def _flattened_feature_count(layers: Sequence[Layer], channels: int, size: int) -> int | None:
    shapes = _shapes_before_layers(layers, channels, size)
    return None if shapes is None else prod(shapes[-1])


def _leaves_pixels_unread(layers: Sequence[Layer], channels: int, size: int) -> bool:
    """Return whether a convolution or pooling leaves rows and columns unread, or reads beyond the image."""
    for layer, shape in zip(layers, _shapes_before_layers(layers, channels, size) or (), strict=False):
        if isinstance(layer, Conv2d) and (shape[1] + 2 * layer.padding - layer.kernel) % layer.stride:
            return True
        if isinstance(layer, Pool) and (shape[1] - layer.window) % layer.effective_stride:
            return True
    return False
