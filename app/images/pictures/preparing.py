"""Convert a picture to the network's input, (C, H, W) uint8. The first layer divides by 255, on the GPU.

The steps are those of the authors of Fashion-MNIST ("Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms", Xiao, Rasul, Vollgraf, 2017, section 2). docs/predict.md, "How pictures are prepared", gives the
measured figures behind the constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.images.pictures.ground import SeparatedPicture, border_mask, dilate, frame_mask, separate_object

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels."""
MODES = {1: "L", 3: "RGB"}
TRIMMED_AT = 256  # the object is located on an averaged picture of at most so many pixels along its longer edge
SHARPENED = 50  # percent of the difference from a Gaussian blur of radius 1
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # the weights with which Pillow makes grey of colours
LIGHT, DARK = 170, 85  # of 255: grounds on which few objects are lighter, or darker
LITTLE = 0.1  # of the squared differences from the ground: less does not decide whether an object is dark
EMPTY = 0.005  # of the picture's area: a smaller object is doubtful
CUT = 0.02  # of the outermost pixels: an object that covers more of them is cut off


class PreparedPicture(Frozen):
    """A picture as a network's input. pixels: (C, H, W) uint8. inverted: whether the pixels were negated.

    doubts: reasons for which the network's answer may be wrong, as in the column ``note`` of ``predict``.
    """

    pixels: np.ndarray
    inverted: bool
    doubts: tuple[str, ...] = ()


def prepare_picture(image: Picture, shape: tuple[int, int, int], invert: str = "auto") -> PreparedPicture:
    """Convert an image of mode L or RGB to a network's input of ``shape`` (C, H, W); C is 1 (grey) or 3 (RGB).

    The object is separated from the background and scaled to fit by area averaging, slightly sharpened, and centred. It
    is negated if ``invert`` is "yes", or "auto" and the object is darker than the background; "auto" never negates for
    a network with colours. Grey images are then stretched so that the background is black. An image that already has
    the network's size is only converted to grey or colours, and negated if its border is light.

    Raises UserError for another number of channels.
    """
    channels, height, width = shape
    if channels not in MODES:
        raise UserError(f"the network reads {channels} channels, and pictures have 1 or 3: give it arrays")
    mode, automatic = MODES[channels], invert == "auto" and channels == 1
    if image.size == (width, height):
        pixels = _to_channels_first(image.convert(mode))
        inverted = invert == "yes" or (automatic and _has_light_border(image))
        return PreparedPicture(255 - pixels if inverted else pixels, inverted)
    factor = -(-max(image.size) // TRIMMED_AT)
    reduced = np.asarray(image.reduce(factor).convert("RGB")).astype(np.float32)
    found = separate_object(reduced)
    box = _bounding_box(found.mask)
    border = np.median(found.ground[border_mask(found.mask.shape)], axis=0)
    inverted = invert == "yes" or (automatic and _is_darker_than_background(reduced @ LUMA, found))
    content = _scale_box(box, factor, image.size)
    small = _to_channels_first(_crop_and_scale(image, content, (width, height)).convert(mode))
    ground = np.rint(border @ LUMA if channels == 1 else border).astype(np.uint8).reshape(-1, 1, 1)
    if channels == 1 and (automatic or (ground.item() >= 128) == inverted):
        small, ground = _stretch_contrast(small[0], found, box, inverted)[None], np.zeros_like(ground)
    elif inverted:
        small, ground = 255 - small, 255 - ground
    pixels = np.empty(shape, np.uint8)
    pixels[:] = ground
    top, left = (height - small.shape[1]) // 2, (width - small.shape[2]) // 2
    pixels[:, top : top + small.shape[1], left : left + small.shape[2]] = small
    longest = max(content[2] - content[0], content[3] - content[1])
    return PreparedPicture(pixels, inverted, _find_doubts(found, longest < max(width, height)))


def _has_light_border(image: Picture) -> bool:
    grey = np.asarray(image.convert("L"))
    return bool(np.median(grey[frame_mask(grey.shape, 1)]) >= 128)


def _bounding_box(mask: np.ndarray) -> Box:
    """Return the smallest box around a mask, (h, w) bool; the whole picture if the mask is empty."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return 0, 0, mask.shape[1], mask.shape[0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _scale_box(box: Box, factor: int, size: tuple[int, int]) -> Box:
    left, top, right, bottom = (factor * at for at in box)
    return left, top, min(right, size[0]), min(bottom, size[1])


def _is_darker_than_background(grey: np.ndarray, found: SeparatedPicture) -> bool:
    """Return whether the object is darker than the background, by sums of squared differences from the background.

    One sum is over its darker pixels, one over its lighter ones. On a light background, a smaller sum of the darker
    pixels is enough, because few objects are lighter there; on a dark background, the reverse holds.
    """
    ground = found.ground @ LUMA
    typical = float(np.median(ground))
    if not found.mask.any():
        return typical >= 128
    rest = (grey - ground)[found.mask]
    lighter, darker = (float(np.square(part).sum()) for part in (rest.clip(0), rest.clip(None, 0)))
    if typical >= LIGHT:
        return darker >= LITTLE * lighter
    return darker >= lighter if typical >= DARK else lighter < LITTLE * darker


def _stretch_contrast(grey: np.ndarray, found: SeparatedPicture, box: Box, inverted: bool) -> np.ndarray:
    """Return the grey pixels in ``box``, uint8, with the background at 0, and white (black if ``inverted``) at 255."""
    from PIL.Image import Resampling, fromarray

    size = grey.shape[::-1]
    ground = np.asarray(fromarray(np.rint(found.ground @ LUMA)).resize(size, Resampling.BILINEAR, box))
    mask = dilate(found.mask, 3) if found.rough and found.mask.any() else np.ones_like(found.mask)
    inside = np.asarray(fromarray(mask.astype(np.float32)).resize(size, Resampling.BOX, box))
    lifted = (ground - grey) / ground.clip(1) if inverted else (grey - ground) / (255 - ground).clip(1)
    return np.rint((255 * inside * lifted).clip(0, 255)).astype(np.uint8)


def _find_doubts(found: SeparatedPicture, small: bool) -> tuple[str, ...]:
    """Return reasons to doubt the answer: background, position or size. small: the object is smaller than the input."""
    doubts = {
        "ground not plain": not found.plain,
        "nearly empty": found.mask.mean() < EMPTY,
        "cut at the border": found.mask[frame_mask(found.mask.shape, 1)].mean() > CUT,
        "very small": small,
    }
    return tuple(name for name, holds in doubts.items() if holds)


def _crop_and_scale(image: Picture, box: Box, most: tuple[int, int]) -> Picture:
    """Return the content of the box, scaled as large as fits in ``most`` (width, height), and sharpened."""
    from PIL import ImageFilter
    from PIL.Image import Resampling

    width, height = box[2] - box[0], box[3] - box[1]
    scale = min(most[0] / width, most[1] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    way = Resampling.BOX if scale < 1 else Resampling.BICUBIC
    return image.resize(size, way, box).filter(ImageFilter.UnsharpMask(1, SHARPENED, 0))


def _to_channels_first(image: Picture) -> np.ndarray:
    """Return the image as (C, H, W) uint8."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
