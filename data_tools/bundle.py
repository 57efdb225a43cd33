"""Run ``python -m data_tools bundle``: copy weights to weights/, with their accuracy and float64 reference results."""

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

from app.base.errors import UserError, escape_unprintable
from app.base.interrupts import deferred_interrupts
from app.files import shipped
from app.network.definitions import is_listed_network
from app.network.graph import build_graph
from app.network.reference import compute_reference, save_reference
from app.network.verdicts import correct_counts
from app.network.weights import Weights, load_weights, save_weights
from data_tools.fashion_mnist import CLASSES, open_split

TEXTS: dict[str, Any] = {
    "help": "copy weights from main.py train into weights/",
    "description": "Copy weights into weights/ and store their counts of correct answers.",
    "epilog": """\
examples:
  python -m data_tools bundle fa19_trained.h5
      writes weights/fa19_fashion.h5 and fa19_fashion_reference.h5 beside it
  python -m data_tools bundle weights/lenet5_fashion.h5
      measures the shipped weights again

The file contains its network, which must be a listed one. bundle replaces that
network's files in weights/ and their lines in weights/SHA256SUMS. It counts
correct answers and computes the float64 reference: half a minute for the
largest network on two cores. The weights keep their number type (see main.py
train --storage).
""",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``bundle``."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="weights file from main.py train")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with Fashion-MNIST's files")


def ship_weights(options: argparse.Namespace) -> None:
    """Copy each weights file to weights/ and print its numbers of correct labels. Raises UserError."""
    files = [load_weights(path) for path in options.files]  # read all before writing any
    for first, second in combinations(files, 2):
        if first.network == second.network:
            raise UserError(f"{first.path} and {second.path} are both weights of {first.network}: name one of them")
    for weights in files:
        if not is_listed_network(weights.stored_network()):
            unlisted = f"{weights.path} defines a network {weights.network} that is not the listed one"
            raise UserError(f"{unlisted}: put its file into app/network/builtin first")
        target = shipped.weights_path(weights.network)
        for path in (target, shipped.reference_path(target), shipped.FOLDER / shipped.CHECKSUMS):
            if path.is_symlink():
                raise UserError(f"{path} is a link, and the file behind it would be replaced: remove the link")
    for weights in files:
        written = _ship_file(weights, options.data_dir)
        promise = ", ".join(f"{correct:,} / {count:,}" for count, correct in written.expected_correct.items())
        print(escape_unprintable(f"{weights.path} is now {written.path} ({written.storage}): {promise} correct"))


def _ship_file(weights: Weights, data_dir: Path | None) -> Weights:
    """Copy weights to weights/; return the copy. All is computed before the first write; writing defers Ctrl-C."""
    images, truth, _ = open_split("test", data_dir)
    network = weights.stored_network()
    reference = compute_reference(build_graph(network, weights), images[:, None])
    target = shipped.weights_path(weights.network)
    with deferred_interrupts():
        save_weights(
            target,
            weights.arrays,
            network=network,
            classes=CLASSES,
            input_scale=weights.input_scale,
            recipe=weights.recipe,
            expected_correct=correct_counts(reference.labels, truth),
            storage=weights.storage,
            quantised=weights.quantised,
        )
        shipped.record_checksum(target)
        written = load_weights(target)
        save_reference(shipped.reference_path(target), reference, written.sha256, network)
        shipped.record_checksum(shipped.reference_path(target))
    return written


COMMANDS = {"bundle": (ship_weights, TEXTS)}
