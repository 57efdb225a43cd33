"""Make picture files for tests: all pixel formats, false headers, and lit photos of clothes on grounds as JPEG."""

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
    """Return the image as the content of a file of this kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def cut(image: Image.Image, kind: str) -> bytes:
    """Return the first half of the image's file content."""
    content = saved(image, kind)
    return content[: len(content) // 2]


def png(width: int, height: int, depth: int, colours: int, rows: bytes = b"") -> bytes:
    """Return a PNG file built chunk by chunk, for 16-bit pixels or a false size in the header."""

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


BICUBIC = Image.Resampling.BICUBIC
Rng = np.random.Generator
Size = tuple[int, int]
"""Height and width."""


def photo(pixels: np.ndarray, ground: str, rng: Rng) -> bytes:
    """Return a JPEG file of the garment (28 × 28 uint8, light on black) on one of ``GROUNDS``."""
    height, width = size = int(rng.integers(260, 640)), int(rng.integers(260, 640))
    alpha, thread = _laid_down(pixels, size, rng)
    low, high, texture, light = GROUNDS[ground]
    shade = rng.uniform(low, high)
    dark = shade >= 0.5 or (shade > 0.3 and rng.random() < 0.5)  # the garment
    ink = rng.uniform(0.02, 0.2) if dark else rng.uniform(0.8, 1)
    brown = np.array([1.15, 0.95, 0.75]) if ground == "wood" else 1 + rng.normal(0, 0.03, 3)
    tints = brown[:, None, None], (1 + rng.normal(0, 0.03, 3))[:, None, None]
    cloth = shade + (ink - shade) * thread
    seen = shade * tints[0] * texture(size, rng) * (1 - alpha) + cloth * tints[1] * alpha
    seen = seen * light(size, rng)
    noise = rng.uniform(6, 10) if ground == "noisy" else rng.uniform(1, 3)
    seen = (255 * seen + rng.normal(0, noise, (1, height, width))).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(seen.transpose(1, 2, 0)).save(file, "JPEG", quality=int(rng.integers(70, 96)))
    return file.getvalue()


def _laid_down(pixels: np.ndarray, size: Size, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the garment covers the ground (0 to 1), and its shade (0: the ground's, 1: the ink's).

    Half of the garments cover the ground where they have its shade, and contrast with it everywhere.
    """
    padded = np.pad(pixels, 3)
    covers = padded > 8
    rows, columns = (
        np.maximum.accumulate(covers, axis) & np.flip(np.maximum.accumulate(np.flip(covers, axis), axis), axis)
        for axis in (1, 0)
    )
    edge = int(min(size) * rng.uniform(0.5, 0.95))
    angle, at = rng.uniform(-10, 10), [int(rng.integers(0, most - edge + 1)) for most in size]
    found = []
    for small in padded, 255 * (rows & columns).astype(np.uint8):
        large = Image.new("L", size[::-1])
        turned = Image.fromarray(small).resize((edge, edge), BICUBIC).rotate(angle, BICUBIC)
        large.paste(turned, (at[1], at[0]))
        found.append(np.asarray(large) / 255)
    thread, alpha = found
    if rng.random() < 0.5:
        return alpha, thread + rng.uniform(0, 0.15) * (1 - thread)
    return (thread > 0.02) * 1.0, thread


def _even(size: Size, rng: Rng) -> np.ndarray:
    return _falling(size, rng, 0, 0.08)


def _falling(size: Size, rng: Rng, least: float = 0.3, most: float = 0.6) -> np.ndarray:
    """Return light that falls off along a direction, towards the corners, or both."""
    y, x = np.mgrid[-1 : 1 : size[0] * 1j, -1 : 1 : size[1] * 1j]
    angle, kind = rng.uniform(0, 2 * np.pi), rng.integers(3)
    falls = (1 + (np.cos(angle) * x + np.sin(angle) * y) / np.sqrt(2)) / 2, (x * x + y * y) / 2
    amounts = rng.uniform(least, most) * (kind != 1), rng.uniform(least, most) * (kind != 0)
    return (1 - amounts[0] * falls[0]) * (1 - amounts[1] * falls[1])


def _lamps(size: Size, rng: Rng) -> np.ndarray:
    """Return the light of two lamps above the table, near its middle or beside it, and of the room."""
    y, x = np.mgrid[-1 : 1 : size[0] * 1j, -1 : 1 : size[1] * 1j]
    found = np.full(size, rng.uniform(0.25, 0.6))
    for _ in range(2):
        away, height = np.hypot(x - rng.uniform(-1.6, 1.6), y - rng.uniform(-1.6, 1.6)), rng.uniform(1.1, 2.2)
        found += rng.uniform(0.2, 0.9) * (1 + (away / height) ** 2) ** -1.5
    return found / found.max()


def _clouds(size: Size, rng: Rng) -> np.ndarray:
    shades = _smooth(size, (int(rng.integers(3, 8)), int(rng.integers(3, 8))), rng)
    return np.exp(rng.uniform(0.1, 0.3) * shades)


def _hand(size: Size, rng: Rng) -> np.ndarray:
    """Return the soft shadow of an arm or a phone that comes in from an edge."""
    y, x = np.mgrid[-1 : 1 : size[0] * 1j, -1 : 1 : size[1] * 1j]
    angle, soft = rng.uniform(0, 2 * np.pi), rng.uniform(0.02, 0.06)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    inside = along - rng.uniform(0, 0.7), rng.uniform(0.15, 0.5) - np.abs(across - rng.uniform(-0.5, 0.5))
    shadow = np.prod([1 / (1 + np.exp(-depth / soft)) for depth in inside], axis=0)
    return 1 - rng.uniform(0.15, 0.45) * shadow


def _smooth(size: Size, cells: Size, rng: Rng) -> np.ndarray:
    """Return smooth noise of about -1 to 1 with so many bumps downwards and across."""
    small = Image.fromarray(rng.uniform(-1, 1, (cells[0] + 1, cells[1] + 1)).astype(np.float32))
    return np.asarray(small.resize(size[::-1], BICUBIC))


def _plain(size: Size, rng: Rng) -> np.ndarray:
    return np.ones(size)


def _creases(size: Size, rng: Rng) -> np.ndarray:
    """Return the shades of folds: long bumps, and ridges where smooth noise passes zero."""
    cells = int(rng.integers(2, 5)), int(rng.integers(3, 8))
    bumps = _smooth(size, cells if rng.random() < 0.5 else cells[::-1], rng)
    ridges = np.exp(-((_smooth(size, cells, rng) / 0.15) ** 2))
    return 1 + rng.uniform(0.05, 0.12) * bumps + rng.uniform(-0.1, 0.1) * ridges


def _wood(size: Size, rng: Rng) -> np.ndarray:
    """Return stripes with grain, turned a little, along either edge."""
    across, along = size if rng.random() < 0.5 else size[::-1]
    y, x = np.mgrid[0 : 1 : across * 1j, 0 : 1 : along * 1j]
    place = y + np.tan(np.radians(rng.uniform(-5, 5))) * x + 0.01 * _smooth((across, along), (4, 3), rng)
    profile = np.cumsum(rng.normal(0, 1, 600)) * 0.12 + rng.normal(0, 1, 600)
    stripes = np.interp(place, np.linspace(-0.2, 1.2, 600), profile / profile.std())
    found = 1 + rng.uniform(0.06, 0.15) * stripes + 0.05 * _smooth((across, along), (across // 3, 4), rng)
    return found if found.shape == size else found.T


def _tiles(size: Size, rng: Rng) -> np.ndarray:
    """Return tiles of slightly different shades, turned, with darker joints."""
    y, x = np.mgrid[: size[0], : size[1]] / max(size)
    angle, count = rng.uniform(-0.3, 0.3), rng.uniform(2, 6)
    down, across = (count * (np.cos(angle) * a + np.sin(angle) * b) + 8 for a, b in ((y, x), (x, -y)))
    shades = 1 + rng.normal(0, 0.03, (20, 20))[down.astype(int), across.astype(int)]
    joint = np.minimum.reduce([down % 1, -down % 1, across % 1, -across % 1]) < 0.02
    return np.where(joint, rng.uniform(0.7, 0.9), shades)


Texture = Callable[[Size, Rng], np.ndarray]
# Name → the least and most reflectance, the texture, and the light.
GROUNDS: dict[str, tuple[float, float, Texture, Texture]] = {
    "white": (0.85, 1.0, _plain, _even),
    "grey": (0.4, 0.75, _plain, _even),
    "noisy": (0.6, 0.95, _plain, _even),
    "uneven": (0.6, 0.98, _plain, _falling),
    "lamps": (0.6, 0.98, _plain, _lamps),
    "cloudy": (0.6, 0.9, _plain, _clouds),
    "hand": (0.6, 0.98, _plain, _hand),
    "dark": (0.04, 0.2, _plain, _even),
    "creased": (0.55, 0.92, _creases, _even),
    "tiles": (0.5, 0.9, _tiles, _falling),
    "wood": (0.3, 0.6, _wood, _even),
}
