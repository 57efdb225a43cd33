"""Common parts of ``round`` and ``quantise``: the files, and the training images that errors are compensated on."""

import argparse
import os
from pathlib import Path

import numpy as np

from app.errors import UserError
from app.network.network import Network
from app.output import check_writable
from data_tools.fashion_mnist import SPLITS, open_split


def add_options(parser: argparse.ArgumentParser, file: str) -> None:
    """Add IN, OUT and the options of the images. file: what IN is."""
    parser.add_argument("file", type=Path, metavar="IN", help=file)
    parser.add_argument("out", type=Path, metavar="OUT", help="weights file to write")
    parser.add_argument(
        "--images", type=int, default=10_000, metavar="N", help="number of training images (default: %(default)s)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with Fashion-MNIST's files")


def check(options: argparse.Namespace) -> None:
    """Raise UserError unless there are as many training images."""
    most = SPLITS["train"][0].shape[0]
    if not 1 <= options.images <= most:
        raise UserError(f"--images {options.images} is not between 1 and {most:,}")


def check_out(out: Path) -> None:
    """Raise UserError if OUT exists or could not be written."""
    check_writable(out, "OUT")
    if os.path.lexists(out):
        raise UserError(f"{out} already exists: name another file, or remove it first")


def images(options: argparse.Namespace, network: Network) -> np.ndarray:
    """Return the first training images, (N, 1, 28, 28) uint8. Raises UserError if the network reads others."""
    found = open_split("train", options.data_dir).images[: options.images, None]
    if network.input_shape != found.shape[1:]:
        sizes = " x ".join(map(str, network.input_shape))
        raise UserError(f"network {network.name} reads images of {sizes}, Fashion-MNIST's are 1 x 28 x 28")
    return found
