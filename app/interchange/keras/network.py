"""A network as it grows from Keras' layers, and what waits to be folded into the next one."""

from collections.abc import Mapping
from math import isqrt, prod

import numpy as np

from app.base.errors import UserError
from app.interchange.chain import Found, assemble_network
from app.interchange.keras import computed
from app.interchange.keras.chain import KerasLayer
from app.interchange.layout import to_channels_first
from app.interchange.source import Engine, Source
from app.layers import Conv2d, Flatten, Layer, Linear, Shape
from app.network.network import MAX_ACTIVATIONS, PIXEL_SCALE

MOST_KEPT = 1024  # channels of a scaling that becomes a layer of its own
OTHERS = "export another network"
Affine = tuple[np.ndarray, np.ndarray]  # factor and offset, () or one for each channel


class GrowingNetwork:
    """The layers so far, with arrays in a weights file's layout.

    shape: what the last one gives for an image, as Keras has it: (H, W, C), (H, W) or (features,). pending: factor and
    offset of what the next layer reads, as of a normalisation. pixel_scale: None as long as nothing scales the images.
    """

    def __init__(self, input_shape: Shape) -> None:
        self.shape = self._input_shape = input_shape
        self.notes: list[str] = []
        self.found: list[Found] = []
        self.steps: list[computed.Step] = []  # what Keras computes up to here
        self.pending: Affine | None = None
        self.pixel_scale: float | None = None
        self._image: Shape = ()

    def add(
        self, layer: Layer, arrays: Mapping[str, np.ndarray] | None = None, origins: Mapping[str, str] | None = None
    ) -> None:
        """Append a layer and its arrays, in a weights file's layout. Raises UserError if it does not fit."""
        shape = (self.shape[2], *self.shape[:2]) if len(self.shape) == 3 else self.shape
        self._image = self._image or shape
        after = layer.output_shape(shape)
        if prod(after) > MAX_ACTIVATIONS:
            raise UserError(f"it gives {prod(after):,} numbers an image, more than {MAX_ACTIVATIONS:,}")
        self.shape = (*after[1:], after[0]) if len(after) == 3 else after
        self.found.append(Found(layer, dict(arrays or {}), dict(origins or {})))

    def flatten(self) -> None:
        """Flatten maps, or images without a channel axis; features stay."""
        if len(self.shape) == 2:
            self.shape = (*self.shape, 1)
        if len(self.shape) == 3:
            if self.pending is not None:
                factor, offset = (np.tile(one, prod(self.shape[:2])) if one.ndim else one for one in self.pending)
                self.pending = (factor, offset)
            self.add(Flatten(""))

    def split_features(self, layer: KerasLayer) -> None:
        """Take the features that a model begins with as the pixels of square images."""
        count = prod(self.shape)
        channels = next((channels for channels in (1, 3) if isqrt(count // channels) ** 2 * channels == count), 0)
        if not channels:
            raise layer.fault(f"reads {count:,} features, which are no square image", OTHERS)
        side = isqrt(count // channels)
        self.notes.append(f"its {count:,} features are taken as {side} x {side} pixels, row by row")
        self.shape = (side, side, channels)
        self.add(Flatten(""))

    def scale(self, factor: np.ndarray, offset: np.ndarray) -> None:
        """Let the next layer read its input times a factor plus an offset: () or one for each channel."""
        before = self.pending or (np.float64(1), np.float64(0))
        factor, offset = np.asarray(before[0] * factor), np.asarray(before[1] * factor + offset)
        self.pending = (factor, offset) if (factor != 1).any() or offset.any() else None

    def keep_pending(self, layer: KerasLayer) -> None:
        """Add a layer for the pending scale and offset, or the identity, because the first layer must have weights."""
        count = self.shape[-1]
        if count > MOST_KEPT or len(self.shape) == 2:
            raise layer.fault("cannot read what scalings before it leave", OTHERS)
        factor, offset = (np.broadcast_to(one, count) for one in self.pending or (np.ones(1), np.zeros(1)))
        weights, self.pending = np.diag(factor).astype(np.float32), None
        maps = len(self.shape) == 3
        arrays = {"": weights[None, None] if maps else weights, "_bias": offset.astype(np.float32)}
        self.notes.append(
            f"a layer with the scale and offset of each channel is put before {layer.name} ({layer.kind})"
        )
        self.add(Conv2d("", count, 1) if maps else Linear("", count), arrays)

    def absorb(self, weights: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
        """Fold the pending scale and offset into weights (…, in, out) and bias (out,).

        Return {"": weights, "_bias": bias}, float32, computed in float64 and rounded once.
        """
        found = {"": weights} | ({} if bias is None else {"_bias": bias})
        if self.pending is None:
            return found
        factor, offset = (np.broadcast_to(one, weights.shape[-2])[:, None] for one in self.pending)
        self.pending, wide = None, weights.astype(np.float64)
        if offset.any():
            shift = (wide * offset).sum(axis=tuple(range(weights.ndim - 1)))
            found["_bias"] = ((0 if bias is None else bias) + shift).astype(np.float32)
        return {**found, "": (wide * factor).astype(np.float32)}

    def source(self, name: str) -> Source:
        """Return the network of this name and its arrays. Raises BadValueError."""
        if self.pixel_scale is None:
            self.notes.append("nothing in it scales its images: taken as pixels from 0 to 1")
        scale = PIXEL_SCALE if self.pixel_scale is None else self.pixel_scale
        network, arrays, origins = assemble_network(self.found, name, "imported from Keras", self._image, scale)
        engine = Engine("plain NumPy, layer by layer as Keras has them", self._logits)
        notes = tuple(dict.fromkeys(self.notes))
        return Source(network, to_channels_first(network, arrays), origins, notes, engine, unchanged=True)

    def _logits(self, images: np.ndarray) -> np.ndarray:
        """Compute the model's scores before a softmax of images (B, C, H, W) uint8."""
        x = images.transpose(0, 2, 3, 1).reshape(len(images), *self._input_shape).astype(np.float64)
        if self.pixel_scale is None:
            x *= PIXEL_SCALE
        for step in self.steps:
            x = step(x)
        return x
