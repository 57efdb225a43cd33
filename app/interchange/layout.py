"""Between the origin's layout, filters (M, C, K, K) and features in C, H, W order, and the weights file's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from app.files.checks import BadValueError
from app.interchange.source import Source
from app.layers import Conv2d, Flatten, Linear, Shape
from app.layers.flatten import channel_first_rows
from app.network.definitions import Network


@dataclass(frozen=True)
class Converted:
    """One array of the weights file. change: from which shape and order to which, in words; "" for a plain copy."""

    name: str
    array: np.ndarray
    change: str


def converted(source: Source) -> list[Converted]:
    """Convert every array, in the network's order. Raises BadValueError where names or shapes are another network's."""
    network = source.network
    found: list[Converted] = []
    wanted = [*_wanted(network)]
    for name, ours, flattened in wanted:
        theirs = channels_first_shape(ours)
        if name not in source.arrays:
            if not name.endswith("_bias"):
                raise BadValueError(f"has no {name} {_shape(theirs)}, which network {network.name} needs; {REMEDY}")
            continue
        _check(name, source.arrays[name], theirs, network)
        one = _converted(name, source.arrays[name], flattened)
        found.append(replace(one, change="") if source.unchanged else one)
    if unknown := sorted(source.arrays.keys() - {name for name, *_ in wanted}):
        raise BadValueError(f"{unknown[0]} is not part of network {network.name}; {REMEDY}")
    return found


def to_channels_first(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a weights file in the layout of a ``Source``: the opposite of ``converted``.

    Raises BadValueError where a shape is another network's; names that are not the network's are kept.
    """
    found = dict(arrays)
    for name, ours, flattened in _wanted(network):
        if name in arrays:
            _check(name, arrays[name], ours, network)
            if len(ours) == 4:
                found[name] = np.ascontiguousarray(arrays[name].transpose(3, 2, 0, 1))
            elif len(ours) == 2:
                rows = arrays[name] if flattened is None else arrays[name][channel_first_rows(flattened)]
                found[name] = np.ascontiguousarray(rows.T)
    return found


def channels_first_shape(shape: Shape) -> Shape:
    """Return the shape in the layout of a ``Source`` of an array that has this shape in a weights file."""
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


def _wanted(network: Network) -> Iterator[tuple[str, Shape, Shape | None]]:
    """Yield each array's name and shape in a weights file; for a matrix behind a Flatten also what it flattens."""
    shape, flattened = network.input_shape, None
    for layer in network.layers:
        if isinstance(layer, Flatten):
            flattened = shape
        for name, ours in layer.parameter_shapes(shape).items():
            yield name, ours, flattened if len(ours) == 2 else None
        if isinstance(layer, Conv2d | Linear):
            flattened = None
        shape = layer.output_shape(shape)


def _check(name: str, array: np.ndarray, wanted: Shape, network: Network) -> None:
    if array.shape != wanted:
        needs = f"network {network.name} needs {_shape(wanted)}"
        raise BadValueError(f"{name} is {_shape(array.shape)}, {needs}; {REMEDY}")


REMEDY = "name the file's own network with --network"


def _converted(name: str, array: np.ndarray, flattened: Shape | None) -> Converted:
    if array.ndim == 1:
        return Converted(name, array, "")
    before = _shape(array.shape)
    if array.ndim == 4:
        moved = np.ascontiguousarray(array.transpose(2, 3, 1, 0))
        return Converted(name, moved, f"{before} as out,in,H,W -> {_shape(moved.shape)} as H,W,in,out")
    moved = np.ascontiguousarray(array.T)
    after = _shape(moved.shape)
    if flattened is None:
        return Converted(name, moved, f"{before} -> {after}")
    rows = np.empty_like(moved)
    rows[channel_first_rows(flattened)] = moved
    return Converted(name, rows, f"{before} over C,H,W -> {after} over H,W,C")


def _shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
