"""Collect the layers built from Keras' layers, and the factor and offset that the next layer must include."""

from collections.abc import Mapping
from math import isqrt, prod

import numpy as np

from app.base.errors import UserError
from app.interchange.chain import FoundLayer, assemble_network
from app.interchange.keras import computed
from app.interchange.keras.chain import OTHERS, KerasLayer
from app.interchange.layout import to_channels_first
from app.interchange.source import Engine, Source
from app.layers import Conv2d, Flatten, Layer, Linear, Shape
from app.network.network import MAX_ACTIVATIONS, PIXEL_SCALE

MOST_KEPT = 1024  # channels for which a factor and offset may become a separate layer
Affine = tuple[np.ndarray, np.ndarray]  # factor and offset, () or one for each channel


class GrowingNetwork:
    """The layers that were added so far, with arrays in the layout of weights files.

    shape: output for one image, as in Keras: (H, W, C), (H, W) or (features,). pending: factor and offset, for example
    of a normalisation, of the next layer's input. pixel_scale: None as long as no layer scales the images.
    """

    def __init__(self, input_shape: Shape) -> None:
        self.shape = self._input_shape = input_shape
        self.notes: list[str] = []
        self.found: list[FoundLayer] = []
        self.steps: list[computed.Step] = []
        self.pending: Affine | None = None
        self.pixel_scale: float | None = None
        self._image: Shape = ()

    def add_layer(
        self, layer: Layer, arrays: Mapping[str, np.ndarray] | None = None, origins: Mapping[str, str] | None = None
    ) -> None:
        """Append a layer. arrays, origins: as in ``FoundLayer``, in the layout of weights files. Raises UserError."""
        shape = (self.shape[2], *self.shape[:2]) if len(self.shape) == 3 else self.shape
        self._image = self._image or shape
        after = layer.output_shape(shape)
        if prod(after) > MAX_ACTIVATIONS:
            raise UserError(f"it gives {prod(after):,} numbers an image, more than {MAX_ACTIVATIONS:,}")
        self.shape = (*after[1:], after[0]) if len(after) == 3 else after
        self.found.append(FoundLayer(layer, dict(arrays or {}), dict(origins or {})))

    def flatten(self) -> None:
        """Add a layer that flattens maps, or images without a channel axis; do nothing if the shape is (features,)."""
        if len(self.shape) == 2:
            self.shape = (*self.shape, 1)
        if len(self.shape) == 3:
            if self.pending is not None:
                factor, offset = (np.tile(one, prod(self.shape[:2])) if one.ndim else one for one in self.pending)
                self.pending = (factor, offset)
            self.add_layer(Flatten(""))

    def treat_features_as_pixels(self, layer: KerasLayer) -> None:
        """Treat the features that the model reads as pixels of square images. layer: for the error, a BadValueError."""
        count = prod(self.shape)
        channels = next((channels for channels in (1, 3) if isqrt(count // channels) ** 2 * channels == count), 0)
        if not channels:
            raise layer.error(f"reads {count:,} features, which are no square image", OTHERS)
        side = isqrt(count // channels)
        self.notes.append(f"its {count:,} features are taken as {side} x {side} pixels, row by row")
        self.shape = (side, side, channels)
        self.add_layer(Flatten(""))

    def defer_scale(self, factor: np.ndarray, offset: np.ndarray) -> None:
        """Let the next layer read its input x as ``factor`` * x + ``offset``. Both are () or (channels,)."""
        before = self.pending or (np.float64(1), np.float64(0))
        factor, offset = np.asarray(before[0] * factor), np.asarray(before[1] * factor + offset)
        self.pending = (factor, offset) if (factor != 1).any() or offset.any() else None

    def add_pending_scale_as_layer(self, layer: KerasLayer) -> None:
        """Add a layer that applies the pending factor and offset, else an identity. layer: the next one, for errors."""
        count = self.shape[-1]
        if count > MOST_KEPT or len(self.shape) == 2:
            raise layer.error("cannot read what scalings before it leave", OTHERS)
        factor, offset = (np.broadcast_to(one, count) for one in self.pending or (np.ones(1), np.zeros(1)))
        weights, self.pending = np.diag(factor).astype(np.float32), None
        maps = len(self.shape) == 3
        arrays = {"": weights[None, None] if maps else weights, "_bias": offset.astype(np.float32)}
        self.notes.append(
            f"a layer with the scale and offset of each channel is put before {layer.name} ({layer.kind})"
        )
        self.add_layer(Conv2d("", count, 1) if maps else Linear("", count), arrays)

    def fold_pending_scale_into(self, weights: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return weights (…, in, out) and bias (out,) that also apply the pending factor and offset, and clear these.

        The result is {"": weights}, float32, with "_bias" unless there is neither bias nor offset. Sums are computed in
        float64 and rounded once.
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

    def to_source(self, name: str) -> Source:
        """Return the network, named ``name``, and its arrays as a ``Source``. Raises BadValueError."""
        if self.pixel_scale is None:
            self.notes.append("nothing in it scales its images: taken as pixels from 0 to 1")
        scale = PIXEL_SCALE if self.pixel_scale is None else self.pixel_scale
        network, arrays, origins = assemble_network(self.found, name, "imported from Keras", self._image, scale)
        engine = Engine("plain NumPy, layer by layer as Keras has them", self._logits)
        notes = tuple(dict.fromkeys(self.notes))
        return Source(network, to_channels_first(network, arrays), origins, notes, engine, unchanged=True)

    def _logits(self, images: np.ndarray) -> np.ndarray:
        """Return the model's scores before a softmax, (B, classes) float64, of images (B, C, H, W) uint8."""
        x = images.transpose(0, 2, 3, 1).reshape(len(images), *self._input_shape).astype(np.float64)
        if self.pixel_scale is None:
            x *= PIXEL_SCALE
        for step in self.steps:
            x = step(x)
        return x
