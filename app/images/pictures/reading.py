"""Read one picture file with Pillow, as 8-bit grey or colour, and report each fault in one line."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from app.base.errors import UserError, pip_install_command
from app.files.hdf5 import printable_line
from app.files.reading import START_BYTES, open_regular, read_first_bytes, recognise_file_kind

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 30
# Pillow's names. Left out: TIFF, whose library prints messages about damaged files, and formats that have no signature
# or run other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM")
DECODED = 1024
"""The least pixels of a JPEG's longer edge after decoding. Pillow can average to a half, a quarter or an eighth while
it decodes: that saves most of the time for photos, and every network's input is smaller."""
LARGE = 1 << 24
"""Pictures of more pixels are decoded one at a time, however many threads read: each takes some 100 MB."""
_one_large = Lock()


class UnreadablePicture(UserError):  # noqa: N818
    """A file is no picture, damaged, too large or of an unsupported kind. Other pictures may be readable."""


def require_pillow() -> None:
    """Import Pillow. Raises UserError if it is not installed."""
    try:
        from PIL import Image, WebPImagePlugin  # noqa: F401, Pillow loads the other formats by itself
    except ImportError:
        raise UserError(f"reading pictures needs Pillow: {pip_install_command('pictures')}") from None
    # Pillow warns of harmless oddities. This holds for all threads, unlike warnings.catch_warnings.
    warnings.filterwarnings("ignore", module="PIL")


def read_picture(path: Path, max_pixels: int = MAX_PIXELS) -> Picture:
    """Read a picture file; return a Pillow image of mode L (grey) or RGB, upright, on white where it is transparent.

    The declared size is compared with ``max_pixels`` before any pixel is decoded. Large JPEG files are decoded at a
    half, a quarter or an eighth of their size, but with a longer edge of at least 1,024 pixels. Only the first frame or
    page of a file is read; ``image.info["frames"]`` is the number of frames.

    Raises UnreadablePicture, one line that names the file, and UserError without Pillow.
    """
    require_pillow()
    from PIL import Image, ImageOps

    name = printable_line(str(path))
    try:
        with open_regular(path, MAX_BYTES) as stream, Image.open(stream, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise UnreadablePicture(
                    f"{name} has {width:,} × {height:,} pixels, {_too_many_pixels_text(max_pixels)}"
                )
            longest = max(image.size)
            image.draft(None, (max(1, width * DECODED // longest), max(1, height * DECODED // longest)))
            # Phones store previews behind photos (MPO), which is no animation.
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            with _one_large if image.width * image.height > LARGE else nullcontext():
                image.seek(0)
                ImageOps.exif_transpose(image, in_place=True)
                upright = _convert_picture_mode(image, name)
    except UnreadablePicture:
        raise
    except UserError as error:
        raise UnreadablePicture(printable_line(str(error).replace(str(path), name), 1000)) from error
    except Image.UnidentifiedImageError:
        raise UnreadablePicture(f"{name} is {_describe_unknown_file(path)}") from None
    except Image.DecompressionBombError as error:
        pixels = re.search("[0-9]+", str(error))
        count = int(pixels[0]) if pixels else 0
        raise UnreadablePicture(f"{name} has {count:,} pixels, {_too_many_pixels_text(max_pixels)}") from None
    except MemoryError:
        raise UnreadablePicture(f"{name} needs more memory than there is: make it smaller") from None
    except Exception as error:  # Pillow's readers raise every kind of error for damaged files
        reason = printable_line(re.sub(r"\s+", " ", str(error)) or type(error).__name__)
        raise UnreadablePicture(f"{name} is damaged ({reason}): copy or save it again") from error
    upright.info = {"frames": frames}
    return upright


def _too_many_pixels_text(max_pixels: int) -> str:
    return f"more than the {max_pixels:,} that are read: make it smaller"


def _describe_unknown_file(path: Path) -> str:
    """Return what a file is that Pillow does not recognise, and the remedy, for an error after ``NAME is``."""
    start = read_first_bytes(path, START_BYTES)
    if not start:
        return "empty: copy it again"
    kind = recognise_file_kind(start) or "no picture that can be read"
    if "picture" not in kind:
        kind = f"no picture but {kind}"
    elif kind.startswith("a"):
        return f"{kind}, damaged or of an unsupported kind: save it again as PNG or JPEG"
    return f"{kind}: convert it to PNG or JPEG"


def _convert_picture_mode(image: Picture, name: str) -> Picture:
    """Return a picture of any mode as L (grey) or RGB, on white where it is transparent. name: for the error."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; Pillow's conversion would clip them at 255
        values = np.asarray(image)
        grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        if isinstance(clear := image.info.get("transparency"), int):
            grey[values == clear] = 255
        return Image.fromarray(grey)
    if image.mode == "F":
        raise UnreadablePicture(f"{name} has pixels of 32-bit floating point: save it with 8 or 16 bits")
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.new("RGB", above.size, "white")
        image.paste(above, mask=above)
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)
