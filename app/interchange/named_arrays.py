"""Match the named arrays of NPZ, safetensors and PyTorch files to a network; read descriptions in exported files.

Names follow one of two conventions, each with its layout: ``conv1`` and ``conv1_bias`` as in this program's weights
files, or ``conv1.weight`` and ``conv1.bias`` as in PyTorch.
"""

import json
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import (
    BadValueError,
    format_for_error,
    list_check,
    nullable_check,
    number_check,
    object_check,
    parse_json,
    string,
    text_check,
)
from app.interchange.engines import torch_engine
from app.interchange.layout import source_array_shapes, to_channels_first
from app.interchange.source import ImportOptions, Source, as_float32
from app.interchange.torch_arrays import BIAS, WEIGHT, fold_batch_norms, guess_network
from app.layers import Shape
from app.network.definitions import Network
from app.network.foreign import DESCRIPTION
from app.network.toml import network_toml, parse_network
from app.network.weights import LEAST_SCALE, MOST_SCALE

MAX_ARRAYS = 10_000
KEYS = ("classes", "class_names", "labels", "names", "id2label")  # metadata keys that may hold the class names


class Description(Frozen):
    """The network, class names and scale of pixel bytes (``input_scale``) that an exported file contains."""

    network: Network
    input_scale: float
    classes: tuple[str, ...] | None

    @property
    def json(self) -> str:
        """Return the description as JSON text, which ``parse_description`` reads."""
        classes = None if self.classes is None else list(self.classes)
        found = {"definition": network_toml(self.network), "input_scale": self.input_scale, "classes": classes}
        return json.dumps(found)


class NamedArrays(Frozen):
    """The arrays of a file by name, of any dtype, and its other metadata.

    description: None for a file that this program did not write. notes: what the reader omitted.
    """

    arrays: Mapping[str, np.ndarray]
    description: Description | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class NoNetworkError(BadValueError):
    """Neither the file nor the user names a network. guess: the only network that fits the arrays' shapes, or None."""

    def __init__(self, guess: Network | None) -> None:
        self.guess = guess
        remedy = "name it with --network, as lenet5 or a .toml file"
        if guess is not None:
            file = f"{guess.name}.toml"
            remedy = (
                "the printed one alone fits its shapes, if its activations are ReLU and its poolings maxima: save it "
                f"as {file}, correct it and give --network {file}"
            )
        super().__init__(f"has no network in it; {remedy}")


_CHECK = object_check(
    {
        "definition": string,
        "input_scale": number_check(LEAST_SCALE, MOST_SCALE),
        "classes": nullable_check(list_check(text_check(), 1)),
    }
)


def parse_description(content: str) -> Description:
    """Return the description in a JSON text. Raises BadValueError, and UserError for an invalid network."""
    try:
        found = _CHECK(parse_json(content))
    except BadValueError as error:
        raise BadValueError(f"has a wrong description ({DESCRIPTION}): {error}; export it again") from None
    classes = None if found["classes"] is None else tuple(found["classes"])
    return Description(parse_network(found["definition"], "its definition"), found["input_scale"], classes)


def match_to_network(named: NamedArrays, options: ImportOptions) -> Source:
    """Return the network in ``options``, else the file's own, and arrays by its array names. Raises BadValueError."""
    if options.size is not None or options.symbol is not None:
        raise BadValueError("needs neither --size nor --symbol; leave them out")
    if odd := [name for name in named.arrays if not name.isprintable()]:
        raise BadValueError(f"names an array {format_for_error(odd[0])}; rename it")
    about = named.description
    network = options.network or (about.network if about else None)
    notes = [*named.notes]
    torch_names = any(name.rpartition(".")[2] in (WEIGHT, BIAS) for name in named.arrays)
    given = fold_batch_norms(named.arrays, notes) if torch_names else named.arrays
    if network is None:
        raise NoNetworkError(guess_network(given, options.name) if torch_names else None)
    origins = _torch_array_names(network, given) if torch_names else {name: name for name in given}
    arrays = {name: as_float32(origin, given[origin], notes) for name, origin in origins.items()}
    if not torch_names:
        arrays = to_channels_first(network, arrays)
    classes = about.classes if about else parse_class_names(named.metadata, network, notes)
    scale, unchanged = about.input_scale if about else None, not torch_names
    source = Source(network, arrays, origins, tuple(notes), unchanged=unchanged, input_scale=scale, classes=classes)
    return replace(source, engine=torch_engine(source)) if torch_names else source


def _torch_array_names(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return array name in the network → name in the file, such as ``conv1`` → ``conv1.weight``.

    A prefix in the file is the name of its layer, or any other if the shapes fit in exactly one way.
    """
    weights: dict[str, str] = {}
    biases: dict[str, str] = {}
    for name in arrays:
        prefix, _, kind = name.rpartition(".")
        if kind not in (WEIGHT, BIAS):
            raise BadValueError(
                f"{format_for_error(name)} is named neither like conv1.weight nor like conv1.bias; remove it"
            )
        (weights if kind == WEIGHT else biases)[prefix] = name
    if lost := sorted(biases.keys() - weights.keys()):
        raise BadValueError(f"{format_for_error(biases[lost[0]])} has no weight beside it; add it")
    found: dict[str, str] = {}
    for layer, prefix in _layer_prefixes(
        network, {prefix: arrays[name].shape for prefix, name in weights.items()}
    ).items():
        found[layer] = weights[prefix]
        if prefix in biases:
            found[f"{layer}_bias"] = biases[prefix]
    return found


def _layer_prefixes(network: Network, shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Return layer → prefix of its names in the file: the layer's name, else the only prefix with its shape."""
    # PyTorch's array for each layer with weights is (M, C, K, K) or (out, in).
    wanted = {name: shape for name, shape in source_array_shapes(network).items() if not name.endswith("_bias")}
    if shapes.keys() == wanted.keys():
        return {name: name for name in wanted}
    if sorted(shapes.values()) != sorted(wanted.values()):
        needs = ", ".join(f"{name} {shape}" for name, shape in wanted.items())
        has = ", ".join(f"{format_for_error(name)} {shape}" for name, shape in list(shapes.items())[:20])
        raise BadValueError(f"has the weights {has}; network {network.name} needs {needs}: name its own --network")
    found = {}
    for layer, shape in wanted.items():
        fitting = [prefix for prefix, other in shapes.items() if other == shape]
        if len(fitting) > 1:
            names = " and ".join(map(format_for_error, fitting))
            raise BadValueError(f"has {names} of one shape: rename them as the layers are: {', '.join(wanted)}")
        found[layer] = fitting[0]
    return found


def parse_class_names(metadata: Mapping[str, str], network: Network, notes: list[str]) -> tuple[str, ...] | None:
    """Return the class names in the metadata, under the first of ``KEYS`` that exists; None if there are none.

    The names are a JSON list, or an object such as {"0": "Bag"}. Anything else gives None and a note in ``notes``.
    """
    key = next((key for key in KEYS if key in metadata), None)
    if key is None:
        return None
    (classes,) = network.steps[-1].in_shape
    try:
        found = parse_json(metadata[key])
        if isinstance(found, dict):
            found = [found.get(str(at)) for at in range(len(found))]
        names = tuple(list_check(text_check())(found))
        if len(names) != classes:
            raise BadValueError(f"{len(names):,} names for {classes:,} classes")
    except BadValueError as error:
        notes.append(f"the names of classes in its metadata ({format_for_error(key)}) are left out: {error}")
        return None
    return names


def torch_key(name: str) -> str:
    """Return PyTorch's name of an array: ``conv1`` → ``conv1.weight``, ``conv1_bias`` → ``conv1.bias``."""
    layer = name.removesuffix("_bias")
    return f"{layer}.{WEIGHT if layer == name else BIAS}"
