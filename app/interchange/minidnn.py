"""Read mini-dnn's flat files: a number of layers, then, for each layer, a number of floats and these floats.

All numbers are little-endian. An int32 gives the number of layers. Each layer has an int32, the number of its floats (0
without weights), then these float32: all weights, then all biases. Eigen stores matrices by columns, so filters are (M,
C, K, K), and fully connected weights are (out, in) over features in C, H, W order. The user names the network.
"""

from math import prod

import numpy as np

from app.files.checks import BadValueError
from app.interchange.chain import with_mini_dnn_preprocessing
from app.interchange.layout import REMEDY, source_array_shapes
from app.interchange.source import Cursor, ImportOptions, Source
from app.layers import Argmax, Flatten, Resize


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return the network in ``options`` with the arrays of a flat file. Raises BadValueError."""
    if options.network is None:
        raise BadValueError("a flat dump has no names; name its network with --network, as minidnn86")
    if options.size is not None or options.symbol is not None:
        raise BadValueError("a flat dump's sizes follow from --network; leave --size and --symbol out")
    network = with_mini_dnn_preprocessing(options.network)
    # mini-dnn has no resize, flatten and argmax layers. Of its layers, those without weights have 0 floats.
    layers = [layer.name for layer in network.layers if not isinstance(layer, Resize | Flatten | Argmax)]
    shapes = source_array_shapes(network)
    cursor = Cursor(content)
    count = cursor.read_int("i", "the number of layers")
    if count != len(layers):
        remedy = REMEDY
        if int.from_bytes(content[:4], "big") == len(layers):
            remedy = "its numbers are big-endian: convert them to little-endian"
        told = f"declares {count:,} layers, network {network.name} has {len(layers)}"
        raise BadValueError(f"{told} (without resize, flatten and argmax); {remedy}")
    arrays: dict[str, np.ndarray] = {}
    for layer in layers:
        names = [name for name in (layer, f"{layer}_bias") if name in shapes]
        floats = _read_layer_floats(cursor, layer, [prod(shapes[name]) for name in names])
        for name in names:
            part, floats = np.split(floats, [prod(shapes[name])])
            if part.size:
                arrays[name] = part.reshape(shapes[name])
    cursor.check_end("its last layer")
    return Source(network, arrays, {})


def _read_layer_floats(cursor: Cursor, layer: str, sizes: list[int]) -> np.ndarray:
    """Return a layer's floats, (n,) float32. layer: its name. sizes: [weights, biases], or [] if it has none."""
    count = cursor.read_int("i", f"the number of floats of layer {layer}")
    if count not in (sum(sizes), *sizes[:1]):
        told = f"layer {layer} has {count:,} floats, but its network needs {sum(sizes):,}"
        raise BadValueError(f"{told}; {REMEDY}")
    content = cursor.read_bytes(4 * count, f"the {count:,} floats of layer {layer}")
    return np.frombuffer(content, "<f4").astype(np.float32)
