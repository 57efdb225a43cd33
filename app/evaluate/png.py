"""PNG pictures, without a library: the page must not need one."""

import struct
import zlib

import numpy as np

from app.figures import PNG

COLOUR_TYPES = {1: 0, 3: 2}  # channels → PNG's number of grey and of RGB


def as_png(image: np.ndarray) -> bytes:
    """Return the content of a PNG file of an image, (C, H, W) with C of 1 or 3: uint8, or floats in [0, 1]."""
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    channels, height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    # A byte before each row names its filter: 0, none.
    rows = np.pad(pixels.transpose(1, 2, 0).reshape(height, width * channels), ((0, 0), (1, 0)))
    return PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
