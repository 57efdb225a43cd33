"""Convert arrays between the layouts of a ``Source`` (filters (M, C, K, K)) and of weights files ((K, K, C, M))."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import BadValueError
from app.interchange.source import Source
from app.layers import Conv2d, Flatten, Linear, Shape
from app.layers.flatten import channels_first_permutation
from app.network.definitions import Network

REMEDY = "name the file's own network with --network"


class ConvertedArray(Frozen):
    """An array for the weights file. before, after: shape and axis order in the source and in the file, as text."""

    name: str
    array: np.ndarray
    before: str
    after: str


def source_array_shapes(network: Network) -> dict[str, Shape]:
    """Return the shape that each array has in a ``Source``, by its name in weights files; includes optional biases."""
    return {name: channels_first_shape(ours) for name, ours, _ in _array_shapes(network)}


def convert_arrays(source: Source) -> list[ConvertedArray]:
    """Return every array in the layout of weights files, in the network's order. Raises BadValueError for a misfit."""
    network = source.network
    found: list[ConvertedArray] = []
    wanted = [*_array_shapes(network)]
    for name, ours, flattened in wanted:
        theirs = channels_first_shape(ours)
        if name not in source.arrays:
            if not name.endswith("_bias"):
                raise BadValueError(
                    f"has no {name} {format_shape(theirs)}, which network {network.name} needs; {REMEDY}"
                )
            continue
        _check_array_shape(name, source.arrays[name], theirs, network)
        one = _convert_array(name, source.arrays[name], flattened)
        found.append(replace(one, before=one.after) if source.unchanged else one)
    if unknown := sorted(source.arrays.keys() - {name for name, *_ in wanted}):
        raise BadValueError(f"{unknown[0]} is not part of network {network.name}; {REMEDY}")
    return found


def to_channels_first(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of a weights file in the layout of a ``Source``; the opposite of ``convert_arrays``.

    The result includes arrays with names that the network lacks. Raises BadValueError for a shape that does not fit.
    """
    found = dict(arrays)
    for name, ours, flattened in _array_shapes(network):
        if name in arrays:
            _check_array_shape(name, arrays[name], ours, network)
            if len(ours) == 4:
                found[name] = np.ascontiguousarray(arrays[name].transpose(3, 2, 0, 1))
            elif len(ours) == 2:
                rows = arrays[name] if flattened is None else arrays[name][channels_first_permutation(flattened)]
                found[name] = np.ascontiguousarray(rows.T)
    return found


def channels_first_shape(shape: Shape) -> Shape:
    """Return the shape that an array of a weights file has in the layout of a ``Source``."""
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


def _array_shapes(network: Network) -> Iterator[tuple[str, Shape, Shape | None]]:
    """Yield (name, shape in a weights file, shape of the flattened maps that it reads, or None) of each array."""
    flattened = None
    for step in network.steps:
        if isinstance(step.layer, Flatten):
            flattened = step.in_shape
        for name, ours in step.parameter_shapes.items():
            yield name, ours, flattened if len(ours) == 2 else None
        if isinstance(step.layer, Conv2d | Linear):
            flattened = None


def _check_array_shape(name: str, array: np.ndarray, wanted: Shape, network: Network) -> None:
    if array.shape != wanted:
        needs = f"network {network.name} needs {format_shape(wanted)}"
        raise BadValueError(f"{name} is {format_shape(array.shape)}, {needs}; {REMEDY}")


def _convert_array(name: str, array: np.ndarray, flattened: Shape | None) -> ConvertedArray:
    """Convert an array to the layout of weights files. flattened: shape (C, H, W) of the maps that a matrix reads."""
    orders = ("", "")
    if array.ndim == 4:
        moved, orders = array.transpose(2, 3, 1, 0), (" out,in,H,W", " H,W,in,out")
    elif flattened is None:
        moved, orders = array.T, (" out,in", " in,out") if array.ndim == 2 else orders
    else:
        moved, orders = np.empty_like(array.T), (" over C,H,W", " over H,W,C")
        moved[channels_first_permutation(flattened)] = array.T
    before, after = (format_shape(one.shape) + order for one, order in zip((array, moved), orders, strict=True))
    return ConvertedArray(name, np.ascontiguousarray(moved), before, after)


def format_shape(shape: Shape) -> str:
    """Return a shape as text: ``(32, 1296)``."""
    return f"({', '.join(map(str, shape))})"
