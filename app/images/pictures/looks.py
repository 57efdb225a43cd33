"""Draw prepared pictures and their answers as one PNG, and warn if they are unlike Fashion-MNIST in brightness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.files.hdf5 import printable_line
from app.files.writing import replace_atomically

MOST_SHOWN = 400  # the most pictures in a grid
CELL, LINE, GAP = 96, 12, 6  # pixels: an image's edge at least, a line's height, the space between cells
LETTERS = 16  # the most characters in a line
PAPER, INK = (64, 72, 88), "white"

MEAN = 72.94  # mean brightness of Fashion-MNIST's training images, of 255
# Range of the mean of one training image: 1 % are darker, 1 % brighter. Range of the mean of many images: from sandals
# alone (34.9) to coats alone (98.3), with a margin of 3.
MEANS_OF_ONE, MEANS_OF_MANY = (16, 146), (32, 101)


def save_montage(
    path: Path, images: Sequence[np.ndarray], names: Sequence[str], answers: Sequence[str], overwrite: bool = True
) -> None:
    """Write a PNG of the first 400 images, each (C, H, W) uint8 and all of one shape, with names and answers below.

    Raises UserError if the file cannot be written, or if it exists and ``overwrite`` is False.
    """
    from PIL import Image, ImageDraw, ImageFont

    shown = images[:MOST_SHOWN]
    height, width = shown[0].shape[1:]
    factor = max(1, round(CELL / max(height, width)))
    across, down = max(factor * width, CELL) + GAP, factor * height + 2 * LINE + GAP
    columns = math.ceil(math.sqrt(len(shown)))
    grid = Image.new("RGB", (columns * across + GAP, -(-len(shown) // columns) * down + GAP), PAPER)
    draw, font = ImageDraw.Draw(grid), ImageFont.load_default()
    for at, (pixels, *lines) in enumerate(zip(shown, names, answers, strict=False)):
        left, top = GAP + at % columns * across, GAP + at // columns * down
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        grid.paste(picture.resize((factor * width, factor * height), Image.Resampling.NEAREST), (left, top))
        text = "\n".join(printable_line(line, LETTERS).replace("…", "...") for line in lines)
        text = text.encode("ascii", "replace").decode()  # the font has no other characters
        draw.multiline_text((left, top + factor * height + 1), text, INK, font, spacing=1)
    with replace_atomically(path, overwrite=overwrite) as temporary:
        grid.save(temporary, "PNG")


def brightness_note(mean: float, count: int) -> str | None:
    """Return a note if the mean brightness (0 to 255) of ``count`` prepared pictures is unlike Fashion-MNIST's.

    The allowed range is that of single training images for one picture, and narrower for more pictures. The note means
    nothing for weights trained on other data.
    """
    low, high = (many + (one - many) / math.sqrt(count) for one, many in zip(MEANS_OF_ONE, MEANS_OF_MANY, strict=True))
    if low <= mean <= high:
        return None
    return (
        f"the pictures' mean brightness is {mean:.0f} of 255, Fashion-MNIST's {MEAN:.0f}: "
        "look at --show FILE.png, and try --invert"
    )
