"""Infer what a state dict of PyTorch does not contain: the network, and the positions of batch normalisations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, format_for_error
from app.interchange.layer_stack import BatchNorm, fold_batch_norm
from app.interchange.source import as_float32
from app.layers import Argmax, Conv2d, Flatten, Layer, Linear, MaxPool, Relu, Shape
from app.network.network import PIXEL_SCALE, Network, default_names
from app.network.toml import NAME, network_toml, parse_network

WEIGHT, BIAS, MEAN, VARIANCE = "weight", "bias", "running_mean", "running_var"
COUNTER = ".num_batches_tracked"  # suffix of a batch normalisation's counter of batches, which only training reads
EPSILON = 1e-5  # PyTorch's default; a state dict does not contain it
MOST_CONVOLUTIONS = 6  # of a network to guess: each may have a pooling after it, so there are 2⁶ combinations
SIZES = {1: (28,), 3: (28, 32)}  # channels → possible heights and widths of images
ELSEWHERE = "export the model to ONNX, which says where it stands"


def fold_batch_norms(arrays: Mapping[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Return the arrays with each batch normalisation folded into the layer before it, and add notes to ``notes``.

    arrays: by PyTorch's names, in the order of the state dict. Raises BadValueError if no layer fits.
    """
    found = {name: array for name, array in arrays.items() if not name.endswith(COUNTER)}
    norms = [name.removesuffix(f".{MEAN}") for name in found if name.endswith(f".{MEAN}")]
    layers = _layers_before_norms(norms, found)
    for norm in norms:
        parts = {
            kind: as_float32(f"{norm}.{kind}", found.pop(f"{norm}.{kind}"), notes)
            for kind in (WEIGHT, BIAS, MEAN, VARIANCE)
            if f"{norm}.{kind}" in found
        }
        if VARIANCE not in parts:
            raise BadValueError(f"has no {format_for_error(f'{norm}.{VARIANCE}')} beside its mean; add it")
        layer, mean = layers[norm], parts[MEAN]
        scale, shift = parts.get(WEIGHT, np.ones_like(mean)), parts.get(BIAS, np.zeros_like(mean))
        about = BatchNorm(format_for_error(norm), scale, shift, mean, parts[VARIANCE], EPSILON)
        weights = np.moveaxis(as_float32(f"{layer}.{WEIGHT}", found[f"{layer}.{WEIGHT}"], notes), 0, -1)
        folded, bias = fold_batch_norm(weights, found.get(f"{layer}.{BIAS}"), about)
        found |= {f"{layer}.{WEIGHT}": np.moveaxis(folded, -1, 0), f"{layer}.{BIAS}": bias}
        shown = f"folded into {format_for_error(layer)}, as the layer before it, with epsilon {EPSILON:g}"
        notes.append(f"batch normalisation {format_for_error(norm)}: {shown}")
    return found


def _layers_before_norms(norms: Sequence[str], arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return normalisation → layer before it: that of the same number (conv1, bn1), else the previous one."""
    prefixes = list(dict.fromkeys(name.rpartition(".")[0] for name in arrays))
    weights = {prefix: arrays[f"{prefix}.{WEIGHT}"] for prefix in prefixes if f"{prefix}.{WEIGHT}" in arrays}
    weighted = [prefix for prefix, array in weights.items() if array.ndim in (2, 4) and prefix not in norms]
    maps = {norm: arrays[f"{norm}.{MEAN}"].size for norm in norms}
    outputs = {layer: weights[layer].shape[0] for layer in weighted}
    numbered = {
        norm: [
            layer
            for layer in weighted
            if _numbered_prefix(norm) == _numbered_prefix(layer) != "" and outputs[layer] == maps[norm]
        ]
        for norm in norms
    }
    if all(len(layers) == 1 for layers in numbered.values()):
        found = {norm: layers[0] for norm, layers in numbered.items()}
    else:
        found = {
            norm: ([""] + [layer for layer in prefixes[: prefixes.index(norm)] if layer in weighted])[-1]
            for norm in norms
        }
    for norm, layer in found.items():
        if not layer or outputs[layer] != maps[norm] or list(found.values()).count(layer) > 1:
            shown = f"batch normalisation {format_for_error(norm)} of {maps[norm]:,} maps"
            raise BadValueError(f"has {shown}, and no one layer of so many outputs before it; {ELSEWHERE}")
    return found


def _numbered_prefix(prefix: str) -> str:
    """Return the prefix with its last word reduced to the number: ``features.bn1`` → ``features.1``; '' without one."""
    found = re.fullmatch(r"(.*\.)?[A-Za-z_]+(\d+)", prefix)
    return "" if found is None else f"{found[1] or ''}{found[2]}"


def guess_network(arrays: Mapping[str, np.ndarray], name: str) -> Network | None:
    """Return the only network of convolutions, then matrix products, with these shapes; None unless it is unique.

    It is assumed that images are 28 x 28 (colour images also 32 x 32), and that a ReLU follows each layer but the last.
    A 2 x 2 maximum pooling may follow a convolution. Padding keeps the size in all convolutions, the first one or none.
    """
    shapes = {key.rpartition(".")[0]: array.shape for key, array in arrays.items() if key.endswith(f".{WEIGHT}")}
    if not _shapes_form_chain(list(shapes.values())):
        return None
    found = {network_toml(network): network for network in _fitting_networks(shapes, name)}
    return next(iter(found.values())) if len(found) == 1 else None


def _shapes_form_chain(shapes: list[Shape]) -> bool:
    """Return whether shapes are square filters, then matrices, each with as many inputs as the previous has outputs."""
    convolutions = [shape for shape in shapes if len(shape) == 4]
    products = [shape for shape in shapes if len(shape) == 2]
    return (
        bool(products)
        and shapes == convolutions + products
        and len(convolutions) <= MOST_CONVOLUTIONS
        and all(one[0] == two[1] for part in (convolutions, products) for one, two in pairwise(part))
        and all(shape[2] == shape[3] for shape in convolutions)
        and all(shape[1] in SIZES for shape in convolutions[:1])
    )


def _fitting_networks(shapes: Mapping[str, Shape], name: str) -> Iterator[Network]:
    """Yield networks of these shapes, called ``name``: all image sizes, paddings and poolings that fit the matrices."""
    kernels = [shape[2] for shape in shapes.values() if len(shape) == 4]
    features = next(shape[1] for shape in shapes.values() if len(shape) == 2)
    same, none = [kernel // 2 for kernel in kernels], [0] * len(kernels)
    paddings = {tuple(none), *([tuple(same), (*same[:1], *none[1:])] if all(kernel % 2 for kernel in kernels) else [])}
    channels = [next(iter(shapes.values()))[1]] if kernels else list(SIZES)
    images = [(channel, size, size) for channel in channels for size in SIZES[channel]]
    for image, padding, pools in product(images, sorted(paddings), product((False, True), repeat=len(kernels))):
        layers = _guess_layers(shapes, padding, pools)
        network = Network(name, "guessed from the shapes of its arrays", image, layers, PIXEL_SCALE)
        try:
            before = next(step.in_shape for step in network.steps if isinstance(step.layer, Linear))
            if prod(before) == features:
                yield parse_network(network_toml(network), "its network")
        except UserError:  # a window is larger than its input
            continue


def _guess_layers(shapes: Mapping[str, Shape], paddings: Sequence[int], pools: Sequence[bool]) -> tuple[Layer, ...]:
    """Return layers for prefix → shape of weights. paddings: of each convolution. pools: whether pooling follows it."""
    layers: list[Layer] = []
    names: dict[int, str] = {}
    convolutions = 0
    for prefix, shape in shapes.items():
        if len(shape) == 2 and not any(isinstance(layer, Flatten) for layer in layers):
            layers.append(Flatten(""))
        if NAME.fullmatch(prefix) and not prefix.endswith("_bias"):
            names[len(layers)] = prefix
        if len(shape) == 4:
            layers += [Conv2d("", shape[0], shape[2], padding=paddings[convolutions]), Relu("")]
            layers += [MaxPool("", 2)] * pools[convolutions]
            convolutions += 1
        else:
            layers += [Linear("", shape[0]), Relu("")]
    layers.pop()
    default = default_names(layer.kind for layer in layers)
    named = (replace(layer, name=names.get(at, default[at])) for at, layer in enumerate(layers))
    return (*named, Argmax("argmax"))
