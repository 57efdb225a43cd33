"""What ``round`` and ``quantise`` share: both files, and the training images that errors are compensated on."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError, escaped
from app.network.graph import Graph, build
from app.network.weights import Weights, load_weights, save_weights
from app.terminal.output import check_writable
from data_tools.fashion_mnist import SPLITS, open_split


def add_options(parser: argparse.ArgumentParser, file: str) -> None:
    """Add IN, OUT and the options of the images. file: what IN is."""
    parser.add_argument("file", type=Path, metavar="IN", help=file)
    parser.add_argument("out", type=Path, metavar="OUT", help="weights file to write")
    parser.add_argument(
        "--images", type=int, default=10_000, metavar="N", help="number of training images (default: %(default)s)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with Fashion-MNIST's files")


def opened(
    options: argparse.Namespace, is_done: Callable[[Weights], bool], done: str
) -> tuple[Weights, Graph, np.ndarray]:
    """Check the options; return the weights in IN, their graph and the first training images, (N, 1, 28, 28) uint8.

    is_done: whether weights need no work, which ``done`` says. Raises UserError, also if OUT exists or could not be
    written, and if the network reads other images.
    """
    most = SPLITS["train"][0].shape[0]
    if not 1 <= options.images <= most:
        raise UserError(f"--images {options.images} is not between 1 and {most:,}")
    weights = load_weights(options.file)
    if is_done(weights):
        raise UserError(f"{options.file} {done}")
    check_writable(options.out, "OUT")
    if os.path.lexists(options.out):
        raise UserError(f"{options.out} already exists: name another file, or remove it first")
    network = weights.own_network()
    graph = build(network, weights)
    images = open_split("train", options.data_dir).images[: options.images, None]
    if network.input_shape != images.shape[1:]:
        sizes = " x ".join(map(str, network.input_shape))
        raise UserError(f"network {network.name} reads images of {sizes}, Fashion-MNIST's are 1 x 28 x 28")
    return weights, graph, images


def save(options: argparse.Namespace, weights: Weights, how: str, **changes: Any) -> None:
    """Write OUT: the weights of IN with these changes, and a recipe that also says ``how`` they were made."""
    how = f"{how} on {options.images} training images"
    save_weights(
        options.out,
        **{"arrays": weights.arrays, **changes},
        network=weights.own_network(),
        classes=weights.classes,
        input_scale=weights.input_scale,
        recipe=f"{weights.recipe}; {how}" if weights.recipe else how,
        overwrite=False,
    )
    print(escaped(f"wrote {options.out}"))
