"""Define how a weights file stores a second convolution in 8-bit integers: filters, their steps, limits of its input.

Each input map has a limit: an activation becomes a byte, which is 255 for the limit and above. Filters are integers
from -127 to 127, times a step for each output map. All products and sums of these integers are exact.
"""

from collections.abc import Mapping

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import BadValueError

BYTE, SIGNED = 255, 127  # greatest activation and filter, in steps
MARK = "_int8"
SUFFIXES = (MARK, f"{MARK}_limits", f"{MARK}_steps")  # of the datasets' names, sorted


class QuantisedFilters(Frozen):
    """The filters of the second convolution, ``layer``, in 8-bit integers.

    filters: (K, K, in, out) int8, for activations divided by their limits; the greatest magnitude of each map is 127,
    or all of its filters are 0. limits: (in,) float32, the activations that become byte 255. steps: (out,) float32, the
    value of 1 in a filter.
    """

    layer: str
    filters: np.ndarray
    limits: np.ndarray
    steps: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the datasets that a weights file stores, by name."""
        values = (self.filters, self.limits, self.steps)
        return {f"{self.layer}{suffix}": array for suffix, array in zip(SUFFIXES, values, strict=True)}

    def dequantised_parameters(self, parameters: Mapping[str, np.ndarray], previous: str) -> dict[str, np.ndarray]:
        """Return the parameters with this layer's filters as floats, for inputs divided by their limits.

        previous: name of the convolution before, whose weights and bias are divided by the limits.
        """
        own = {name: parameters[name] / self.limits for name in (previous, f"{previous}_bias") if name in parameters}
        return {**parameters, **own, self.layer: self.filters * self.steps}


def split_quantised(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], QuantisedFilters | None]:
    """Split a file's datasets into weights and 8-bit integers; None without such integers. Raises BadValueError."""
    others = {name: array for name, array in arrays.items() if not name.endswith(SUFFIXES)}
    names = sorted(arrays.keys() - others.keys())
    if not names:
        return others, None
    remedy = f"remove the datasets *{MARK}*, and run python -m data_tools quantise"
    layer = names[0].removesuffix(MARK)
    if names != [f"{layer}{suffix}" for suffix in SUFFIXES] or layer not in others:
        raise BadValueError(f"its 8-bit integers are incomplete; {remedy}")
    filters, limits, steps = (arrays[name] for name in names)
    if filters.dtype != np.int8 or filters.ndim != 4 or filters.shape != others[layer].shape:
        raise BadValueError(f"{names[0]} is no array of int8 of {layer}'s shape; {remedy}")
    if not np.isin(np.abs(filters.astype(np.int16)).max(axis=(0, 1, 2)), (0, SIGNED)).all():
        raise BadValueError(f"{names[0]} has outputs whose greatest filter is not {SIGNED}; {remedy}")
    for name, array, size in ((names[1], limits, filters.shape[2]), (names[2], steps, filters.shape[3])):
        if array.dtype != np.float32 or array.shape != (size,) or not (np.isfinite(array) & (array > 0)).all():
            raise BadValueError(f"{name} is no array of {size} positive float32; {remedy}")
    return others, QuantisedFilters(layer, filters, limits, steps)
