"""Convert a picture to the network's input, (C, H, W) bytes.

The steps are those of the authors of Fashion-MNIST ("Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms", Xiao, Rasul, Vollgraf, 2017, section 2). Measured figures behind the constants: docs/predict.md,
"How pictures are prepared".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels."""
MODES = {1: "L", 3: "RGB"}
TRIMMED_AT = 256  # the most pixels of the longer edge where the border is looked for: averaging removes noise
TOLERANCE = 20  # of 255: colours that differ less from the border belong to it; JPEG noise stays below
SHARPENED = 50  # percent of the difference from a Gaussian blur of radius 1


class Prepared(Frozen):
    """A network's input. pixels: (C, H, W) uint8. inverted: whether the picture was negated."""

    pixels: np.ndarray
    inverted: bool


def prepare(image: Picture, shape: tuple[int, int, int], invert: str = "auto") -> Prepared:
    """Prepare an image of mode L or RGB for a network with inputs of ``shape`` (C, H, W); C is 1 (grey) or 3 (RGB).

    The border is trimmed; the rest is scaled to fit by area averaging, slightly sharpened, and centred on the border's
    colour. It is negated if ``invert`` is "yes", or "auto" and the border is light; "auto" never negates for a network
    with colours. Grey images are then stretched so that the border is black. An image that already has the network's
    size is only converted to grey or colours, and negated.

    Raises UserError for another number of channels.
    """
    channels, height, width = shape
    if channels not in MODES:
        raise UserError(f"the network reads {channels} channels, and pictures have 1 or 3: give it arrays")
    mode = MODES[channels]
    border, box = _find_border_and_content(image)
    light = _to_channels_first(border.convert("L")).item() >= 128
    inverted = invert == "yes" or (invert == "auto" and light and channels == 1)
    if image.size == (width, height):
        pixels = _to_channels_first(image.convert(mode))
        return Prepared(255 - pixels if inverted else pixels, inverted)
    small = _to_channels_first(_scaled(image, box, (width, height)).convert(mode))
    ground = _to_channels_first(border.convert(mode))
    if inverted:
        small, ground = 255 - small, 255 - ground
    if channels == 1 and ground.item() < 128:
        small, ground = _stretched(small, ground.item()), np.zeros_like(ground)
    pixels = np.empty(shape, np.uint8)
    pixels[:] = ground
    top, left = (height - small.shape[1]) // 2, (width - small.shape[2]) // 2
    pixels[:, top : top + small.shape[1], left : left + small.shape[2]] = small
    return Prepared(pixels, inverted)


def _find_border_and_content(image: Picture) -> tuple[Picture, Box]:
    """Return a pixel of the border's colour, RGB, and the box of what differs from it (everything if nothing does).

    The colour is the median of the outermost pixels.
    """
    from PIL import Image

    factor = -(-max(image.size) // TRIMMED_AT)
    small = np.asarray(image.reduce(factor).convert("RGB")).astype(np.int16)
    frame = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]])
    border = np.median(frame, axis=0).astype(np.int16)
    differs = np.abs(small - border).max(axis=2) > TOLERANCE
    rows, columns = (np.flatnonzero(differs.any(axis=axis)) for axis in (1, 0))
    box = (0, 0, *image.size)
    if rows.size:
        left, top, right, bottom = (int(at) * factor for at in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        box = (left, top, min(right, image.width), min(bottom, image.height))
    return Image.fromarray(border.astype(np.uint8)[None, None]), box


def _scaled(image: Picture, box: Box, most: tuple[int, int]) -> Picture:
    """Crop to the box, scale as large as fits in ``most`` (width, height), and sharpen."""
    from PIL import ImageFilter
    from PIL.Image import Resampling

    width, height = box[2] - box[0], box[3] - box[1]
    scale = min(most[0] / width, most[1] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    way = Resampling.BOX if scale < 1 else Resampling.BICUBIC
    return image.resize(size, way, box).filter(ImageFilter.UnsharpMask(1, SHARPENED, 0))


def _stretched(grey: np.ndarray, ground: int) -> np.ndarray:
    """Stretch ``grey`` so that ``ground`` and darker pixels become 0 and 255 stays."""
    return np.rint((grey.clip(ground) - np.float32(ground)) * (255 / (255 - ground))).astype(np.uint8)


def _to_channels_first(image: Picture) -> np.ndarray:
    """Return the image as (C, H, W) uint8."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
