"""Images as PNG, without a library: a page must not need one."""

import base64
import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2}  # channels → PNG's number of grey and of RGB


def data_uri(image: np.ndarray) -> str:
    """Return an image, (C, H, W) uint8 or floats in [0, 1], with C of 1 or 3, as the URI of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(as_png(image)).decode()}"


def as_png(image: np.ndarray) -> bytes:
    """Return the content of a PNG file of an image, (C, H, W) with C of 1 or 3: uint8, or floats in [0, 1]."""
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    channels, height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    # A byte before each row names its filter: 0, none.
    rows = np.pad(pixels.transpose(1, 2, 0).reshape(height, width * channels), ((0, 0), (1, 0)))
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    return SIGNATURE + chunks


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
