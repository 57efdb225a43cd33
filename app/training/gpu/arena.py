"""Define arenas: device arrays that each contain all parameters, weights first, and gradients or slots alike."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.layers import Shape
from app.training.gradients import Arrays

ALIGNMENT = 4  # float32 elements: kernels load four at a time


class ArenaLayout(Frozen):
    """The layout of an arena, in elements.

    places: parameter → slice of its elements. weights: end of the weights, where biases begin. size: of the whole
    arena. Up to three padding elements between parameters are always 0.
    """

    shapes: Mapping[str, Shape]
    places: Mapping[str, slice]
    weights: int
    size: int

    def packed(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the arrays, packed into a host array, (size,) float32."""
        flat = np.zeros(self.size, np.float32)
        for name, place in self.places.items():
            flat[place] = arrays[name].ravel()
        return flat

    def unpacked(self, flat: np.ndarray) -> Arrays:
        """Return copies of the arrays in a host copy of an arena, by name, in the order of the shapes."""
        return {name: flat[self.places[name]].reshape(shape).copy() for name, shape in self.shapes.items()}

    def view(self, arena: Any, name: str) -> Any:
        """Return a flat view of a parameter in an arena; None if there is no such parameter."""
        return arena[self.places[name]] if name in self.places else None


def arena_layout(shapes: Mapping[str, Shape]) -> ArenaLayout:
    """Return the layout for parameters of these shapes."""
    places: dict[str, slice] = {}
    at = weights = 0
    for name in sorted(shapes, key=lambda name: name.endswith("_bias")):  # a stable sort
        size = prod(shapes[name])
        places[name] = slice(at, at + size)
        at += -(-size // ALIGNMENT) * ALIGNMENT
        if not name.endswith("_bias"):
            weights = at
    return ArenaLayout(shapes, places, weights, at)
