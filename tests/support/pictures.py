"""Picture files for tests: every kind of pixel, and headers that lie."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

GROUND, CLEAR = 200, 255  # of the pictures below, and where they are transparent on white
WIDTH, HEIGHT = 80, 60


def _grey() -> np.ndarray:
    pixels = np.full((HEIGHT, WIDTH), GROUND, np.uint8)
    pixels[20:40, 30:60] = 5 * np.arange(30)
    return pixels


GREY = _grey()
L = Image.fromarray(GREY)
RGB = Image.merge("RGB", (L, L, L))
ALPHA = Image.fromarray(np.where(GREY == GROUND, 0, 255).astype(np.uint8))
DEEP = GREY.astype(np.uint16) * 257
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [RGB.rotate(9), RGB.rotate(18)]}


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as a file's content."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def cut(image: Image.Image, kind: str) -> bytes:
    """Half of the file's content."""
    content = saved(image, kind)
    return content[: len(content) // 2]


def png(width: int, height: int, depth: int, colours: int, rows: bytes = b"") -> bytes:
    """A PNG file, chunk by chunk: of 16 bits, or of a size that it does not have."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*parts) for parts in chunks)


def _deep_png(colours: int, *channels: np.ndarray) -> bytes:
    return png(
        WIDTH, HEIGHT, 16, colours, b"".join(b"\0" + row.tobytes() for row in np.stack(channels, 2).astype(">u2"))
    )


def _rotated() -> bytes:
    exif = Image.Exif()
    exif[0x112] = 6  # stored on its side
    return saved(RGB.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=exif)


Maker = Callable[[], bytes]
# Name → its content, the grey of the ground, the frames.
KINDS: dict[str, tuple[Maker, int, int]] = {
    "grey.png": (lambda: saved(L, "PNG"), GROUND, 1),
    "colour.png": (lambda: saved(RGB, "PNG"), GROUND, 1),
    "palette.png": (lambda: saved(RGB.quantize(32), "PNG"), GROUND, 1),
    "bits.png": (lambda: saved(L.convert("1"), "PNG"), 255, 1),
    "grey-16.png": (lambda: saved(Image.fromarray(DEEP), "PNG"), GROUND, 1),
    "grey-16.pgm": (lambda: b"P5 80 60 65535\n" + DEEP.astype(">u2").tobytes(), GROUND, 1),
    "colour-16.png": (lambda: _deep_png(2, DEEP, DEEP, DEEP), GROUND, 1),
    "alpha.png": (lambda: saved(Image.merge("LA", (L, ALPHA)), "PNG"), CLEAR, 1),
    "alpha-16.png": (lambda: _deep_png(4, DEEP, np.asarray(ALPHA).astype(np.uint16) * 257), CLEAR, 1),
    "alpha.webp": (lambda: saved(Image.merge("RGBA", (L, L, L, ALPHA)), "WEBP", lossless=True), CLEAR, 1),
    "clear.png": (lambda: saved(L, "PNG", transparency=GROUND), CLEAR, 1),
    "clear-16.png": (lambda: saved(Image.fromarray(DEEP), "PNG", transparency=GROUND * 257), CLEAR, 1),
    "clear-palette.gif": (lambda: saved(RGB.quantize(32), "GIF", transparency=0), CLEAR, 1),
    "ink.jpg": (lambda: saved(RGB.convert("CMYK"), "JPEG", quality=95), GROUND, 1),
    "photo.jpg": (lambda: saved(RGB, "JPEG", quality=95), GROUND, 1),
    "turned.jpg": (_rotated, GROUND, 1),
    "preview.jpg": (lambda: saved(RGB, "MPO", quality=95, **FRAMES), GROUND, 1),
    "film.gif": (lambda: saved(RGB, "GIF", **FRAMES), GROUND, 3),
    "film.png": (lambda: saved(RGB, "PNG", **FRAMES), GROUND, 3),
    "film.webp": (lambda: saved(RGB, "WEBP", lossless=True, **FRAMES), GROUND, 3),
    "plain.bmp": (lambda: saved(RGB, "BMP"), GROUND, 1),
}
HUGE = 100_000
_BMP = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54, 0, 0, 54, 40, HUGE, HUGE, 1, 24, 0, 0, 0, 0, 0, 0)
_EDGE = (HUGE - 1).to_bytes(3, "little")
BOMBS: dict[str, bytes] = {
    "bomb.png": png(HUGE, HUGE, 8, 2),
    "bomb.bmp": _BMP,
    "bomb.ppm": b"P6 100000 100000 255\n",
    "bomb.gif": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0",
    "bomb.webp": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + _EDGE + _EDGE,
}
