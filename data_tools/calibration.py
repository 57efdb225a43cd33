"""Run ``python -m data_tools`` round, quantise and sparsify: reduce weights, with error compensation on images."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError, escape_unprintable
from app.kernels.plain_problems import GROUP, is_two_of_four
from app.network.graph import Graph, build_graph
from app.network.pruning import sparsify_layers
from app.network.rounding import CompensatedLayer, quantise_convolution, round_layers
from app.network.weights import Weights, load_weights, save_weights
from app.terminal.output import check_writable
from data_tools.fashion_mnist import SPLITS, open_split

ROUND: dict[str, Any] = {
    "help": "round weights to float16, with error compensation",
    "description": "Round weights to float16, with error compensation on training images.",
    "epilog": """\
examples:
  python -m data_tools round mine.h5 mine16.h5
      rounds the weights in mine.h5; lenet5's take half a minute
  python -m data_tools bundle mine16.h5
      ships them, with new counts of correct answers

On Hopper cards, --precision fp32x multiplies weights that float16 holds
exactly by two products instead of three. The weights that are not yet rounded
compensate for each error, so that a layer's results change less than by plain
rounding (main.py train --storage float16); round prints both. It reads the
first --images training images of Fashion-MNIST and never the test images,
replaces no file and promises no counts. Memory: five matrices of float64 with
a row and a column for each input of the widest layer.
""",
}
QUANTISE: dict[str, Any] = {
    "help": "add 8-bit filters, with error compensation",
    "description": "Add 8-bit filters to weights, with error compensation on training images.",
    "epilog": """\
examples:
  python -m data_tools quantise mine.h5 mine8.h5
      adds 8-bit filters to the weights in mine.h5: half a minute for lenet5's
  python main.py --weights mine8.h5 --precision int8
      runs with them

--precision int8 multiplies the second convolution in 8-bit integers. quantise
chooses what the greatest byte of each map of its input stands for, and rounds
its filters to -127 to 127 steps, a step for each map of its output; the filters
that are not yet rounded compensate for each error. OUT has the weights of IN
unchanged, and the 8-bit filters beside them. quantise reads the first --images
training images of Fashion-MNIST and never the test images, and replaces no
file.
""",
}
SPARSIFY: dict[str, Any] = {
    "help": "prune convolutions 2:4, with error compensation",
    "description": "Prune convolutions to 2:4 sparsity, with error compensation on training images.",
    "epilog": """\
examples:
  python -m data_tools sparsify mine.h5 pruned.h5
      prunes the convolutions of mine.h5: half a minute for lenet5's
  python main.py train --start pruned.h5 --out sparse.h5
      trains on; weights that are zero stay zero

Of every four consecutive input maps, each pixel of each filter keeps two
weights: those without which the layer's results change most, given that the
weights that stay compensate. It prunes convolutions that read a multiple of
four maps, and fits all later layers to their former results. sparsify reads
the first --images training images of Fashion-MNIST and never the test images,
replaces no file and promises no counts. round and quantise keep the zeros.
""",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments IN and OUT and the options that choose the images."""
    verb = parser.prog.rpartition(" ")[2]
    parser.add_argument("file", type=Path, metavar="IN", help=f"weights file to {verb}")
    parser.add_argument("out", type=Path, metavar="OUT", help="weights file to write")
    parser.add_argument(
        "--images", type=int, default=10_000, metavar="N", help="number of training images (default: %(default)s)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with Fashion-MNIST's files")


def round_weights(options: argparse.Namespace) -> None:
    """Round the weights in IN, write them to OUT and print each layer's error. Raises UserError."""
    refusal = "is stored as float16 already: there is nothing to round"
    weights, graph, images = _load_weights_and_images(options, lambda found: found.storage == "float16", refusal)
    arrays: dict[str, np.ndarray] = {}
    for layer in round_layers(graph, images):
        arrays |= layer.arrays
        _print_errors(layer, "plain rounding")
    how = "rounded to float16 with error compensation"
    _save_weights(options, weights, how, arrays=arrays, storage="float16")


def quantise_weights(options: argparse.Namespace) -> None:
    """Quantise the second convolution of IN, write the weights to OUT and print the error. Raises UserError."""
    refusal = "has 8-bit filters already: there is nothing to quantise"
    weights, graph, images = _load_weights_and_images(options, lambda found: found.quantised is not None, refusal)
    quantised, error, plain = quantise_convolution(graph, images)
    least, most = quantised.limits.min(), quantised.limits.max()
    print(f"{quantised.layer}: byte 255 stands for activations of {least:.3g} to {most:.3g}, by map")
    print(f"{quantised.layer}: its results change by {error:.1e} (plain rounding: {plain:.1e})")
    kept = {"expected_correct": weights.expected_correct, "storage": weights.storage}
    _save_weights(options, weights, f"{quantised.layer} quantised to 8 bits", quantised=quantised, **kept)


def sparsify_weights(options: argparse.Namespace) -> None:
    """Prune the convolutions of IN, write the weights to OUT and print each layer's error. Raises UserError."""
    refusal = "has no convolution to prune: none reads a multiple of four maps, or all are 2:4 sparse already"
    weights, graph, images = _load_weights_and_images(options, lambda found: not _dense_convs(found), refusal)
    arrays = dict(weights.arrays)
    for layer in sparsify_layers(graph, images):
        arrays |= layer.arrays
        _print_errors(layer, "without compensation")
    _save_weights(
        options, weights, f"{', '.join(_dense_convs(weights))} pruned 2:4 with error compensation", arrays=arrays
    )


def _dense_convs(weights: Weights) -> list[str]:
    filters = {name: w for name, w in weights.arrays.items() if w.ndim == 4 and not w.shape[2] % GROUP}
    return [name for name, w in filters.items() if not is_two_of_four(w)]


COMMANDS = {
    "round": (round_weights, ROUND),
    "quantise": (quantise_weights, QUANTISE),
    "sparsify": (sparsify_weights, SPARSIFY),
}


def _print_errors(layer: CompensatedLayer, plainly: str) -> None:
    print(f"{layer.name}: its results change by {layer.error:.1e} ({plainly}: {layer.plain:.1e})")


def _load_weights_and_images(
    options: argparse.Namespace, is_done: Callable[[Weights], bool], done: str
) -> tuple[Weights, Graph, np.ndarray]:
    """Check the options; return the weights in IN, their graph, and training images (N, 1, 28, 28) uint8.

    is_done: returns whether the weights need no work; then ``done`` is the text of the error. Raises UserError, also if
    OUT exists or cannot be written, and if the network reads other images.
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
    network = weights.stored_network()
    graph = build_graph(network, weights)
    images = open_split("train", options.data_dir).images[: options.images, None]
    if network.input_shape != images.shape[1:]:
        sizes = " x ".join(map(str, network.input_shape))
        raise UserError(
            f"network {network.name} reads images of {sizes}, Fashion-MNIST's are 1 x 28 x 28: "
            "name weights of a network that reads these"
        )
    return weights, graph, images


def _save_weights(options: argparse.Namespace, weights: Weights, how: str, **changes: Any) -> None:
    """Write the weights of IN to OUT. how: text added to the recipe. changes: other arguments of ``save_weights``."""
    how = f"{how} on {options.images} training images"
    save_weights(
        options.out,
        **{"arrays": weights.arrays, **changes},
        network=weights.stored_network(),
        classes=weights.classes,
        input_scale=weights.input_scale,
        recipe=f"{weights.recipe}; {how}" if weights.recipe else how,
        overwrite=False,
    )
    print(escape_unprintable(f"wrote {options.out}"))
