"""Collect the layers of another system's model; fold layers that only scale and shift maps into others' weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import BadValueError
from app.interchange.chain import Arrays, FoundLayer
from app.kernels.problems import pooling_window_count
from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Shape
from app.layers.pool import Pool
from app.network.network import MAX_ACTIVATIONS

# A model that multiplies its images by less than this is assumed to read pixels from 0 to 255, otherwise from 0 to 1.
BRIGHT = 1 / 16


class BatchNorm(Frozen):
    """A trained batch normalisation: (x - mean) / sqrt(variance + epsilon) * scale + shift.

    The arrays are (maps,) of any float type. name: name of the layer or node, for errors.
    """

    name: str
    scale: np.ndarray
    shift: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float

    def factor_and_shift(self, maps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the factor and the shift of each map, both (maps,) float64.

        Raises BadValueError for arrays of other sizes, and for a negative variance.
        """
        given = {"scale": self.scale, "shift": self.shift, "mean": self.mean, "variance": self.variance}
        arrays = {what: np.asarray(array, np.float64) for what, array in given.items()}
        for what, array in arrays.items():
            if array.shape != (maps,):
                raise BadValueError(f"batch normalisation {self.name} has a {what} of {array.shape}, needs ({maps},)")
        with np.errstate(all="ignore"):  # infinite and NaN values show in the weights
            if not (arrays["variance"] + self.epsilon > 0).all():
                raise BadValueError(f"batch normalisation {self.name} has a variance that is negative or no number")
            factor = arrays["scale"] / np.sqrt(arrays["variance"] + self.epsilon)
            return factor, arrays["shift"] - arrays["mean"] * factor


def fold_batch_norm(weights: np.ndarray, bias: np.ndarray | None, norm: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (…, maps) and bias (maps,), float32, that also compute the batch normalisation after the layer.

    Sums are float64, rounded once. Raises BadValueError for sizes that do not fit and for a negative variance.
    """
    return fold_affine(weights, bias, *norm.factor_and_shift(weights.shape[-1]))


def fold_affine(
    weights: np.ndarray, bias: np.ndarray | None, factor: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (…, maps) and bias (maps,), float32, that also multiply each output map and then add the shift.

    factor, shift: (maps,) float64. Raises BadValueError for a bias of another size.
    """
    if bias is not None and bias.shape != shift.shape:
        raise BadValueError(f"has a bias of {bias.shape} for {len(shift):,} maps; get a fresh copy")
    with np.errstate(all="ignore"):
        shifted = shift if bias is None else bias.astype(np.float64) * factor + shift
        return (weights.astype(np.float64) * factor).astype(np.float32), shifted.astype(np.float32)


MAX_AFFINE_MAPS = 1024  # of a convolution that only scales and shifts maps: it has maps · maps weights


@dataclass
class PendingAffine:
    """Factor and shift of each map, (n,), to fold into the next layer with weights. nodes: names of their nodes."""

    factor: np.ndarray
    shift: np.ndarray
    nodes: list[str]


class LayerStack:
    """The layers so far, with arrays in PyTorch's layout. shape: output of the last one, (C, H, W) or (features,).

    channels_last: whether the model stores maps as (H, W, C). notes: what was folded or omitted, one text for each.
    """

    def __init__(self, shape: Shape) -> None:
        self.found: list[FoundLayer] = []
        self.shape = _check_shape(shape)
        self.channels_last = False
        self.notes: list[str] = []
        self._pending: PendingAffine | None = None

    @property
    def shape_in_model(self) -> Shape:
        """Return the shape of the last layer's output as the foreign model stores it."""
        return (*self.shape[1:], self.shape[0]) if self.channels_last and len(self.shape) == 3 else self.shape

    @property
    def has_no_weights(self) -> bool:
        """Return whether no layer has weights yet."""
        return all(isinstance(one.layer, Flatten) for one in self.found)

    @property
    def has_pending(self) -> bool:
        """Return whether a factor and a shift are pending for the next layer with weights."""
        return self._pending is not None

    def add_weightless_layer(self, layer: Layer) -> None:
        """Add a layer without weights. Raises BadValueError if a pending factor and shift cannot be moved past it."""
        commutes = isinstance(layer, Flatten)
        if self._pending is not None and isinstance(layer, AvgPool | MaxPool):
            commutes = _commutes_with_pooling(layer, self._pending.factor, self._pending.shift)
        if self._pending is not None and not commutes:
            self.add_pending_affine_as_convolution(f"a {layer.kind} follows")
        after = _check_shape(layer.output_shape(self.shape))
        if self._pending is not None and isinstance(layer, Flatten):
            pixels = self.shape[1] * self.shape[2]
            self._pending.factor = self._pending.factor.repeat(pixels)
            self._pending.shift = self._pending.shift.repeat(pixels)
        self.found.append(FoundLayer(layer))
        self.shape = after

    def add_weighted_layer(self, layer: Conv2d | Linear, arrays: Arrays, origins: dict[str, str]) -> None:
        """Add a layer with the pending factor and shift folded in. arrays: "" → (out, in, …), and perhaps "_bias"."""
        waits = self._pending
        if waits is not None and isinstance(layer, Conv2d) and layer.padding and waits.shift.any():
            self.add_pending_affine_as_convolution("padding follows, whose zeros are not shifted")
        after = _check_shape(layer.output_shape(self.shape))
        if self._pending is not None:
            arrays = arrays | _fold_pending_affine(arrays, self._pending)
            origins = {"_bias": self._pending.nodes[-1]} | origins
            self._add_notes(self._pending.nodes, "folded into the layer behind it")
            self._pending = None
        self.found.append(FoundLayer(layer, arrays, origins))
        self.shape = after

    def add_affine(self, factor: np.ndarray, shift: np.ndarray, node: str) -> None:
        """Multiply each map or feature by its factor, then add its shift, both (maps,). node: name for the notes."""
        last = self._layer_to_fold_into(factor, shift)
        if last is not None:
            weights = np.moveaxis(last.arrays[""], 0, -1)
            folded, bias = fold_affine(weights, last.arrays.get("_bias"), factor, shift)
            last.arrays |= {"": np.moveaxis(folded, -1, 0), "_bias": bias}
            last.origins.setdefault("_bias", node)
            self._add_notes([node], "folded into the layer before it")
            return
        with np.errstate(all="ignore"):  # infinite values show in the weights
            if self._pending is None:
                self._pending = PendingAffine(factor, shift, [node])
            else:
                waits = self._pending
                self._pending = PendingAffine(waits.factor * factor, waits.shift * factor + shift, [*waits.nodes, node])

    def _layer_to_fold_into(self, factor: np.ndarray, shift: np.ndarray) -> FoundLayer | None:
        """Return the last layer with weights if a factor and a shift can be folded into it; otherwise None."""
        for one in reversed(self.found if self._pending is None else []):
            if one.arrays:
                return one
            if not (isinstance(one.layer, AvgPool | MaxPool) and _commutes_with_pooling(one.layer, factor, shift)):
                break
        return None

    def add_pending_affine_as_convolution(self, why: str) -> None:
        """Add the pending factor and shift as a 1 x 1 convolution. why: reason for notes. Raises BadValueError."""
        waits = self._pending
        if waits is None:
            return
        if len(self.shape) != 3:
            raise BadValueError(f"{waits.nodes[-1]} cannot be folded, because {why}; export another network")
        if len(waits.factor) > MAX_AFFINE_MAPS:
            raise BadValueError(f"{waits.nodes[-1]} cannot be folded, because {why}; export a network of fewer maps")
        self._pending = None
        with np.errstate(all="ignore"):
            weights = np.diag(waits.factor).astype(np.float32)[:, :, None, None]
            arrays = {"": weights, "_bias": waits.shift.astype(np.float32)}
        self.add_weighted_layer(Conv2d("", len(weights), 1), arrays, {})
        self._add_notes(waits.nodes, f"a convolution of 1 x 1, because {why}")

    def _add_notes(self, nodes: list[str], what: str) -> None:
        self.notes += [f"{node}: {what}" for node in nodes]


def _commutes_with_pooling(pool: AvgPool | MaxPool, factor: np.ndarray, shift: np.ndarray) -> bool:
    """Return whether scaling and shifting before the pooling gives the same as after it."""
    if isinstance(pool, AvgPool):
        return not (pool.count_padding and shift.any())
    return bool((factor >= 0).all())


def pad_filters_equally(filters: np.ndarray, before: int, behind: int) -> tuple[np.ndarray, int]:
    """Return filters, (M, C, K, K), with the same result for a padding that is equal on all sides, and that padding.

    before, behind: rows, and columns, of padding so far. Zeros in the filters make up for the larger padding.
    """
    more = (max(behind - before, 0), max(before - behind, 0))
    return (np.pad(filters, ((0, 0), (0, 0), more, more)) if any(more) else filters), max(before, behind)


def equivalent_pooling(
    kind: type[AvgPool | MaxPool],
    window: int,
    stride: int,
    shape: Shape,
    pads: Sequence[int],
    ceil: bool = False,
    counted: bool = False,
) -> Pool | None:
    """Return this project's pooling layer with the same result on maps (C, H, W); None if there is none.

    pads: rows and columns before the maps, then after. ceil: round the window count up. counted: a mean counts padding.
    """
    if (
        len(pads) != 4
        or len(shape) != 3
        or pads[0] != pads[1]
        or not 0 <= min(pads) <= max(pads) < window
        or stride < 1
    ):
        return None
    before, behind = pads[0], pads[2:]
    ends = [before + size + more for size, more in zip(shape[1:], behind, strict=True)]
    if min(ends) < window:
        return None
    counts = tuple(
        pooling_window_count(size, window, stride, ceil, before, more)
        for size, more in zip(shape[1:], behind, strict=True)
    )
    rows, columns = (
        [min(window, end - at * stride) for at in range(count)] for end, count in zip(ends, counts, strict=True)
    )
    counted = counted and kind is AvgPool and any(pads)
    extras = sorted({max(more - before, 0) for more in behind} - {0})
    for rounded_up, extra in ((ceil, 0), (True, 0), *((ceil, extra) for extra in extras)):
        if min(shape[1:]) + 2 * before + extra < window:
            continue
        layer: Pool = kind("", window, None if stride == window else stride, rounded_up, before, extra)
        if counted and isinstance(layer, AvgPool):
            layer = replace(layer, count_padding=True)
        if layer.output_shape(shape)[1:] != counts:
            continue
        if not counted or (layer.window_pixel_counts(shape) == np.outer(rows, columns)).all():
            return layer
    return None


def reorder_to_channels_first(rows: np.ndarray, maps: Shape) -> np.ndarray:
    """Return ``rows`` (N, features) with the features reordered from H, W, C to C, H, W. maps: shape (C, H, W)."""
    channels, height, width = maps
    return rows.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(rows.shape)


def _check_shape(shape: Shape) -> Shape:
    """Return ``shape``. Raise BadValueError if an activation of this shape has more numbers than networks may have."""
    if prod(shape) > MAX_ACTIVATIONS:
        raise BadValueError(f"{prod(shape):,} numbers an image are more than {MAX_ACTIVATIONS:,}; get a fresh copy")
    return shape


def _fold_pending_affine(arrays: Arrays, waits: PendingAffine) -> Arrays:
    """Return weights (out, in, …) and bias that also apply the pending factor and shift ``waits`` to the input."""
    with np.errstate(all="ignore"):  # infinite and NaN values show in the weights
        weights = arrays[""].astype(np.float64)
        inputs = (1, -1, *(1,) * (weights.ndim - 2))
        bias = (weights * waits.shift.reshape(inputs)).sum(axis=tuple(range(1, weights.ndim)))
        if "_bias" in arrays:
            bias += arrays["_bias"]
        return {"": (weights * waits.factor.reshape(inputs)).astype(np.float32), "_bias": bias.astype(np.float32)}
