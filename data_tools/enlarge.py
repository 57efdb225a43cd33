"""Run ``python -m data_tools resize``: write image files in another size, bit-identical to the Resize layer's."""

import argparse
import os
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from app.base.errors import UserError, escape_unprintable
from app.files.reading import open_regular
from app.layers import Resize
from app.layers.resize import MAX_SIZE, RULES
from app.network.network import CHANNELS
from data_tools import fashion_mnist
from data_tools.dataset import read_images
from data_tools.fashion_mnist import SPLITS
from data_tools.idx import MAX_BYTES, write_idx_parts

CHUNK = 500  # images resized at a time

TEXTS: dict[str, Any] = {
    "help": "write the images in another size",
    "description": "Resize images: a split of Fashion-MNIST, or IDX files of your own.",
    "usage": "%(prog)s --size N (--split test|train | FILE …) OUT",
    "epilog": """\
examples:
  python -m data_tools resize --size 70 --split test test70.gz
      Fashion-MNIST's test images, in the size that network fa19 uses
  python -m data_tools resize --size 86 images.gz large
      one file; the new one is gzipped if its name ends in .gz
  python -m data_tools resize --size 86 --rule course --split test old86.gz
      the test images as the course's data files have them
  python -m data_tools resize --size 72 a.gz b.gz folder
      several files, into a folder, under their names

resize never replaces a file. Only gzipped files have a checksum, which
reveals later damage. Colour images come out as N x 3 x size x size.
Interpolation is bilinear, with half-pixel centres; two rules say what lies
beyond the image and how a mean becomes a byte:
  edge    the border repeated; rounded to the nearest byte, halves upwards
  course  zeros; cut to a whole number (the data files of systems 2 to 4)
A file does not record its rule: take the rule of the network that shall read
it (main.py networks), because no program can tell them apart later.
""",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``resize``."""
    parser.add_argument("--size", type=int, required=True, metavar="N", help="height and width of the new images")
    parser.add_argument(
        "--rule", choices=[*RULES], default="edge", help="what lies beyond the image, see below (default: %(default)s)"
    )
    parser.add_argument("--split", choices=[*SPLITS], help="resize this split of Fashion-MNIST instead of files")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with Fashion-MNIST's files")
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="FILE", help="files of images to read, then the file or folder to write"
    )


def resize_files(options: argparse.Namespace) -> None:
    """Resize every file that the options name, and print its name. Raises UserError. No incomplete file is left."""
    if not 1 <= options.size <= MAX_SIZE:
        raise UserError(f"--size {options.size} is not between 1 and {MAX_SIZE:,}")
    layer = Resize("resize", options.size, options.rule)
    *files, target = options.paths
    if options.split is not None and files:
        raise UserError(f"--split {options.split} and {files[0]}: name one or the other, and then the output")
    if options.split is None and options.data_dir is not None:
        raise UserError("--data-dir is for --split: leave it out, or add --split test")
    if options.split is None and not files:
        raise UserError(f"nothing to resize: name a file before {target}, or add --split test")
    if len(files) > 1 and not target.is_dir():
        raise UserError(f"{target} is not a folder, but there are {len(files)} files: name a folder for them")
    if options.split is not None:
        path = _output_path(target, f"{SPLITS[options.split][0].name}.gz")
        _require_absent(path)
        _write_resized(path, layer, fashion_mnist.open_split(options.split, options.data_dir).images[:, None])
        return
    targets = [_output_path(target, file.name) for file in files]
    # Check all before writing any: no file is overwritten, or read after another one replaced it.
    for file, path in zip(files, targets, strict=True):
        open_regular(file).close()
        _require_absent(path)
        if targets.count(path) > 1:
            raise UserError(f"two of the files would become {path}: resize them one by one")
    for file, path in zip(files, targets, strict=True):
        _write_resized(path, layer, read_images(file))


def _output_path(target: Path, name: str) -> Path:
    return target / name if target.is_dir() else target


def _require_absent(path: Path) -> None:
    if os.path.lexists(path):
        raise UserError(f"{path} already exists: name another file or folder, or remove it first")


def _write_resized(path: Path, layer: Resize, images: np.ndarray) -> None:
    size, (count, channels, *_) = layer.size, images.shape
    shape = (count, size, size) if channels == 1 else (count, channels, size, size)
    if len(shape) == 4 and size in CHANNELS:
        raise UserError(
            f"--size {size}: no reader could tell the rows of such images from their colours; choose another"
        )
    if prod(shape) > MAX_BYTES:
        raise UserError(
            f"{len(images):,} images of {size} x {size} are more than the {MAX_BYTES:,} bytes that a file may have: "
            "choose a smaller --size"
        )
    with tqdm(total=len(images), desc=path.name, unit=" images", disable=None) as bar:
        write_idx_parts(path, shape, _resize_parts(images, layer, bar.update), overwrite=False)
    print(escape_unprintable(f"{path}: {len(images):,} images of {size} x {size}"))


def _resize_parts(images: np.ndarray, layer: Resize, done: Callable[[int], object]) -> Iterator[np.ndarray]:
    for at in range(0, len(images), CHUNK):
        part = images[at : at + CHUNK]
        yield layer.reference(part, {})
        done(len(part))


COMMANDS = {"resize": (resize_files, TEXTS)}
