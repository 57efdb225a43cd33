"""Where parameters lie on the device: one array for all, weights first, and others laid out alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from app.cuda.memory import uploaded
from app.layers import Shape
from app.training.gradients import Arrays

ALIGNMENT = 4  # float32 elements: kernels read four at a time


@dataclass(frozen=True)
class Layout:
    """Parameter → its first element. weights: the elements that are weights', biases follow; size: of all.

    Between parameters lie up to three elements, 0 in every arena, which stay 0.
    """

    shapes: Mapping[str, Shape]
    starts: Mapping[str, int]
    weights: int
    size: int

    def packed(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """(size,) float32: the arrays in their places."""
        flat = np.zeros(self.size, np.float32)
        for name, start in self.starts.items():
            flat[start : start + arrays[name].size] = arrays[name].ravel()
        return flat

    def unpacked(self, flat: np.ndarray) -> Arrays:
        """Copies of the arrays by name, in the order of the shapes."""
        return {
            name: flat[self.starts[name] : self.starts[name] + prod(shape)].reshape(shape).copy()
            for name, shape in self.shapes.items()
        }

    def view(self, arena: Any, name: str) -> Any | None:
        """A parameter's part of a flat device array, flat; None if there is no such parameter."""
        if name not in self.starts:
            return None
        return arena[self.starts[name] : self.starts[name] + prod(self.shapes[name])]

    def zeros(self) -> Any:
        """An arena on the device."""
        return uploaded(np.zeros(self.size, np.float32))


def layout(shapes: Mapping[str, Shape]) -> Layout:
    """The places of parameters of these shapes."""
    starts: dict[str, int] = {}
    at = weights = 0
    for name in sorted(shapes, key=lambda name: name.endswith("_bias")):  # a stable sort
        starts[name] = at
        at += -(-prod(shapes[name]) // ALIGNMENT) * ALIGNMENT
        if not name.endswith("_bias"):
            weights = at
    return Layout(shapes, starts, weights, at)
