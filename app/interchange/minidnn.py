"""Flat dumps of mini-dnn: the numbers of layers and of floats, then the floats, and nothing else.

Little-endian: int32 number of layers; per layer int32 number of floats, 0 for layers without weights, then that many
float32: all weights, then all biases. Eigen stores columns, so that filters read as (M, C, K, K) and fully connected
weights as (out, in) over features in C, H, W order. Names and shapes come from a network.
"""

import struct
from math import prod

import numpy as np

from app.files.checks import BadValueError
from app.interchange.source import Asked, Source
from app.layers import Argmax, Conv2d, Flatten, Layer, Resize
from app.network.definitions import Network

DAMAGED = "get a fresh copy"


def read(content: bytes, asked: Asked) -> Source:
    """Read a flat dump of the asked network. Raises BadValueError."""
    if asked.network is None:
        raise BadValueError("a flat dump has no names; name its network with --network, as minidnn86")
    if asked.size is not None or asked.symbol is not None:
        raise BadValueError("a flat dump's sizes follow from --network; leave --size and --symbol out")
    network = asked.network
    wanted = _wanted(network)
    count = _int32(content, 0, "the number of layers")
    if count != len(wanted):
        remedy = "name the file's own network with --network"
        if int.from_bytes(content[:4], "big") == len(wanted):
            remedy = "its numbers are big-endian: convert them to little-endian"
        told = f"declares {count:,} layers, network {network.name} has {len(wanted)}"
        raise BadValueError(f"{told} (without resize, flatten and argmax); {remedy}")
    arrays: dict[str, np.ndarray] = {}
    at = 4
    for layer, shapes in wanted:
        floats = _floats(content, at, layer, [prod(shape) for shape in shapes])
        at += 4 + floats.nbytes
        for name, shape in zip((layer.name, f"{layer.name}_bias"), shapes, strict=False):
            part, floats = np.split(floats, [prod(shape)])
            if part.size:
                arrays[name] = part.astype(np.float32).reshape(shape)
    if at != len(content):
        raise BadValueError(f"has {len(content) - at:,} bytes after its last layer; {DAMAGED}")
    return Source(network, arrays, {})


def _wanted(network: Network) -> list[tuple[Layer, list[tuple[int, ...]]]]:
    """List the layers that a dump counts, with the shapes of their weights and biases."""
    found = []
    shape = network.input_shape
    for layer in network.layers:
        if not isinstance(layer, Resize | Flatten | Argmax):  # which mini-dnn has none of
            shapes = [ours[::-1] for ours in layer.parameter_shapes(shape).values()]
            if isinstance(layer, Conv2d):
                shapes[0] = (layer.maps, shape[0], layer.kernel, layer.kernel)
            found.append((layer, shapes))
        shape = layer.output_shape(shape)
    return found


def _floats(content: bytes, at: int, layer: Layer, sizes: list[int]) -> np.ndarray:
    """Read one layer's floats. sizes: numbers of its weights and biases; none for a layer without."""
    count = _int32(content, at, f"the number of floats of layer {layer.name}")
    if count not in (sum(sizes), *sizes[:1]):
        told = f"layer {layer.name} has {count:,} floats, but its network needs {sum(sizes):,}"
        raise BadValueError(f"{told}; name the file's own network with --network")
    if 4 * count > len(content) - at - 4:
        raise BadValueError(f"ends within the {count:,} floats of layer {layer.name}; {DAMAGED}")
    return np.frombuffer(content, "<f4", count, at + 4)


def _int32(content: bytes, at: int, what: str) -> int:
    if len(content) < at + 4:
        raise BadValueError(f"ends before {what}; {DAMAGED}")
    value: int = struct.unpack_from("<i", content, at)[0]
    return value
