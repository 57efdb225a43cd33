"""Read one picture file with Pillow, as 8-bit grey or colour; whatever is wrong with it is one line for the user."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app.errors import UserError
from app.files.formats import START_BYTES, recognise
from app.files.hdf5 import printable
from app.files.reading import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 30
# Pillow's names. Left out: formats that are recognised by nothing, run other programs (EPS) or are no pictures (PDF).
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
DECODED = 1024
"""Least pixels of a JPEG's longer edge that are decoded: it can be averaged to a half, quarter or eighth while it is,
which saves most of the time for photos, and every network's input is smaller."""


class UnreadablePicture(UserError):  # noqa: N818
    """Raised for a file that is no picture, damaged, too large or of an unsupported kind; others may be readable."""


def require_pillow() -> None:
    """Raise UserError where Pillow is not installed."""
    try:
        from PIL import Image  # noqa: F401
    except ImportError:
        raise UserError("reading pictures needs Pillow: pip install 'lenet5-inference[pictures]'") from None


def read_picture(path: Path, max_pixels: int = MAX_PIXELS) -> Picture:
    """Read a picture file; return a Pillow image of mode L (grey) or RGB, upright, on white where it is transparent.

    The declared size is checked against ``max_pixels`` before any pixel is decoded. Large JPEG files are decoded at a
    half, a quarter or an eighth of their size, never below 1,024 pixels for the longer edge. Of an animation or a file
    of several pages the first frame is read; ``image.info["frames"]`` is the number of frames.

    Raises UnreadablePicture, one line that names the file, and UserError without Pillow.
    """
    require_pillow()
    from PIL import Image, ImageOps

    # Pillow warns of oddities that do not keep it from reading. Thread-safe, unlike warnings.catch_warnings.
    warnings.filterwarnings("ignore", module="PIL")
    name = printable(str(path))
    try:
        with open_regular(path, MAX_BYTES) as stream, Image.open(stream, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise UnreadablePicture(f"{name} has {width:,} × {height:,} pixels, {_limit(max_pixels)}")
            image.draft(None, (min(DECODED, width), min(DECODED, height)))
            frames = getattr(image, "n_frames", 1)
            image.seek(0)
            image.load()
            upright = _plain(ImageOps.exif_transpose(image), name)
    except UnreadablePicture:
        raise
    except UserError as error:
        raise UnreadablePicture(printable(str(error), 1000)) from error
    except Image.UnidentifiedImageError:
        raise UnreadablePicture(f"{name} is {_kind(path)}: convert it to PNG or JPEG") from None
    except Image.DecompressionBombError:
        raise UnreadablePicture(f"{name} declares far too many pixels, {_limit(max_pixels)}") from None
    except MemoryError:
        raise UnreadablePicture(f"{name} needs more memory than there is: make it smaller") from None
    except Exception as error:  # Pillow's readers meet damaged files with every kind of error
        reason = printable(re.sub(r"\s+", " ", str(error)) or type(error).__name__)
        raise UnreadablePicture(f"{name} is damaged ({reason}): copy or save it again") from error
    upright.info = {"frames": frames}
    return upright


def _limit(max_pixels: int) -> str:
    return f"more than the {max_pixels:,} that are read: make it smaller"


def _kind(path: Path) -> str:
    """Say what a file is that Pillow does not recognise."""
    with open_regular(path) as stream:
        start = stream.read(START_BYTES)
    if not start:
        return "empty"
    kind = recognise(start)
    return f"no picture but {kind}" if kind and "picture" not in kind else "no picture that can be read"


def _plain(image: Picture, name: str) -> Picture:
    """Convert any mode to L or RGB, transparency on white."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; Pillow itself would cut them off at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise UnreadablePicture(f"{name} has 32-bit pixels: save it with 8 or 16 bits")
        grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        if isinstance(clear := image.info.get("transparency"), int):
            grey[values == clear] = 255
        return Image.fromarray(grey)
    if image.mode == "F":
        raise UnreadablePicture(f"{name} has pixels of 32-bit floating point: save it with 8 or 16 bits")
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
