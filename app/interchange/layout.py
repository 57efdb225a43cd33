"""From the origin's layout, filters (M, C, K, K) and features in C, H, W order, to the weights file's."""

from dataclasses import dataclass

import numpy as np

from app.files.checks import BadValueError
from app.interchange.source import Source
from app.layers import Conv2d, Flatten, Linear
from app.layers.flatten import channel_first_rows


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
    wanted: set[str] = set()
    shape, flattened = network.input_shape, None
    for layer in network.layers:
        if isinstance(layer, Flatten):
            flattened = shape
        for name, ours in layer.parameter_shapes(shape).items():
            theirs = (ours[3], ours[2], *ours[:2]) if len(ours) == 4 else ours[::-1]
            wanted.add(name)
            if name not in source.arrays:
                if not name.endswith("_bias"):
                    raise BadValueError(f"has no {name} {_shape(theirs)}, which network {network.name} needs; {REMEDY}")
                continue
            array = source.arrays[name]
            if array.shape != theirs:
                needs = f"network {network.name} needs {_shape(theirs)}"
                raise BadValueError(f"{name} is {_shape(array.shape)}, {needs}; {REMEDY}")
            found.append(_converted(name, array, flattened if isinstance(layer, Linear) else None))
        if isinstance(layer, Conv2d | Linear):
            flattened = None
        shape = layer.output_shape(shape)
    if unknown := sorted(source.arrays.keys() - wanted):
        raise BadValueError(f"{unknown[0]} is not part of network {network.name}; {REMEDY}")
    return found


REMEDY = "name the file's own network with --network"


def _converted(name: str, array: np.ndarray, flattened: tuple[int, ...] | None) -> Converted:
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


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
