"""Read MXNet's networks: the arrays from a .params file, the layers from a symbol file or the user's network.

If the user gives neither, the reader assumes a network like ``fa19`` if the shapes of the arrays fit.
"""

from collections.abc import Mapping
from itertools import permutations

import numpy as np

from app.files.checks import BadValueError, format_for_error
from app.interchange.chain import Chain, network_from_chain, with_mini_dnn_preprocessing
from app.interchange.layout import source_array_shapes
from app.interchange.mxnet_files import read_params, read_symbol
from app.interchange.source import ImportOptions, Source, as_float32
from app.layers import Conv2d, Flatten, Linear, MaxPool, Softmax, Tanh
from app.network.definitions import Network

LAYERS = 4  # layers with weights in a network like fa19
SUMMARY = "imported from MXNet"
WEIGHT, BIAS = "_weight", "_bias"
ASSUMED = (
    "assumed, as nothing in the file tells: tanh and maximum pooling by 2 behind the first convolution, tanh between "
    "the fully connected layers; --symbol FILE.json or --network FILE.toml tells it exactly"
)


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return a .params file's arrays and network. Raises BadValueError, or UserError for a wrong symbol file."""
    notes: list[str] = []
    arrays = _strip_argument_prefixes(read_params(content), notes)
    if options.network is not None:
        if options.size is not None:
            raise BadValueError("the images' size follows from --network; leave --size out")
        network = with_mini_dnn_preprocessing(options.network)
        names = _match_array_names(network, arrays)
    else:
        chain = _chain_from_shapes(arrays) if options.symbol is None else read_symbol(options.symbol)
        names = chain.names
        notes += chain.notes
        _check_names(names, arrays)
        network = network_from_chain(chain, options.name, SUMMARY, *_input_sizes(chain, arrays), options.size)
    found = {ours: as_float32(theirs, arrays[theirs], notes) for ours, theirs in names.items()}
    return Source(network, found, names, tuple(notes))


def _strip_argument_prefixes(arrays: Mapping[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Return the arrays by name without the prefix ``arg:``; omit ``aux:`` arrays, and add a note to ``notes``."""
    found: dict[str, np.ndarray] = {}
    for whole, array in arrays.items():
        prefix, _, name = whole.rpartition(":")
        if prefix == "aux":
            notes.append(f"{format_for_error(whole)} is left out: no layer uses it")
        elif name in found:
            raise BadValueError(f"names two arrays {format_for_error(name)}; get a fresh copy")
        else:
            found[name] = array
    return found


def _check_names(names: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise BadValueError unless ``names`` (name in the network → in the file) has each array of the file once."""
    remedy = f"give the network of {', '.join(map(format_for_error, sorted(arrays)[:8]))}"
    if missing := sorted(set(names.values()) - arrays.keys()):
        raise BadValueError(f"has no array {format_for_error(missing[0])}, which its network needs; {remedy}")
    if unused := sorted(arrays.keys() - set(names.values())):
        raise BadValueError(f"has an array {format_for_error(unused[0])}, which its network has no use for; {remedy}")
    if len(set(names.values())) < len(names):
        raise BadValueError("has one array for two layers of its network; give each layer its own")


def _input_sizes(chain: Chain, arrays: Mapping[str, np.ndarray]) -> tuple[int, int | None]:
    """Return the number of an image's channels, and of the first fully connected layer's inputs (None without one)."""
    weights = [(layer, arrays[chain.names[layer.name]]) for layer in chain.layers if layer.name in chain.names]
    for layer, array in weights:
        if array.ndim != (4 if isinstance(layer, Conv2d) else 2):
            name = format_for_error(chain.names[layer.name])
            raise BadValueError(f"has {name} with {array.ndim} dimensions, not those of a {layer.kind}")
    channels = next((array.shape[1] for layer, array in weights[:1] if isinstance(layer, Conv2d)), 1)
    return channels, next((array.shape[1] for layer, array in weights if isinstance(layer, Linear)), None)


def _match_array_names(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the network's name of each array → its name in the file: the same name, else the only one of its shape."""
    wanted = {ours: shape for ours, shape in source_array_shapes(network).items() if not ours.endswith("_bias")}
    prefixes = {ours: ours for ours in wanted}
    if any(f"{ours}{WEIGHT}" not in arrays for ours in wanted):
        for ours, shape in wanted.items():
            fitting = [name for name, array in arrays.items() if name.endswith(WEIGHT) and array.shape == shape]
            if len(fitting) != 1 or list(wanted.values()).count(shape) > 1:
                told = f"has no array {ours}{WEIGHT}, and {len(fitting)} of shape {shape}"
                raise BadValueError(f"{told}; name the layers of --network as the file does")
            prefixes[ours] = fitting[0].removesuffix(WEIGHT)
    names = _add_bias_names(prefixes, arrays)
    _check_names(names, arrays)
    return names


def _add_bias_names(prefixes: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the array names: ours → the file's, including existing biases. prefixes: layer → its name in the file."""
    names: dict[str, str] = {}
    for ours, prefix in prefixes.items():
        names[ours] = f"{prefix}{WEIGHT}"
        if f"{prefix}{BIAS}" in arrays:
            names[f"{ours}_bias"] = f"{prefix}{BIAS}"
    return names


def _chain_from_shapes(arrays: Mapping[str, np.ndarray]) -> Chain:
    """Return conv, tanh, maxpool, conv, flatten, fc, tanh, fc, softmax with the sizes that the arrays' shapes give."""
    weights = {name.removesuffix(WEIGHT): array.shape for name, array in arrays.items() if name.endswith(WEIGHT)}
    possible = permutations(weights) if len(weights) == LAYERS else ()
    orders = [order for order in possible if _layers_fit_together([weights[name] for name in order])]
    if len(orders) != 1:
        raise BadValueError(
            "is no network of two convolutions and two fully connected layers; describe it with --symbol FILE.json or "
            "--network FILE.toml"
        )
    ours = dict(zip(("conv1", "conv2", "fc1", "fc2"), orders[0], strict=True))
    names = _add_bias_names(ours, arrays)
    shapes = {name: weights[prefix] for name, prefix in ours.items()}

    def conv(name: str) -> Conv2d:
        return Conv2d(name, shapes[name][0], shapes[name][2], bias=f"{name}_bias" in names)

    def linear(name: str) -> Linear:
        return Linear(name, shapes[name][0], bias=f"{name}_bias" in names)

    first = (conv("conv1"), Tanh("tanh1"), MaxPool("pool1", 2), conv("conv2"), Flatten("flatten"))
    return Chain((*first, linear("fc1"), Tanh("tanh2"), linear("fc2"), Softmax("softmax")), names, (ASSUMED,))


def _layers_fit_together(shapes: list[tuple[int, ...]]) -> bool:
    """Return whether the shapes are those of two convolutions, then two matrices, each reading the layer before it."""
    if [len(shape) for shape in shapes] != [4, 4, 2, 2]:
        return False
    conv1, conv2, fc1, fc2 = shapes
    return conv1[1] in (1, 3) and conv2[1] == conv1[0] and fc1[1] % conv2[0] == 0 and fc2[1] == fc1[0]
