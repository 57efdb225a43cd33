"""Compute the float64 reference, store its results on the test images beside the shipped weights, and load them."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.errors import UserError
from app.files.hdf5 import Wanted, file_image, read_pinned
from app.files.reading import read_file
from app.files.writing import replacing
from app.interrupts import deferred_interrupts
from app.layers import Argmax, Softmax
from app.network import shipped
from app.network.accuracy import Reference, top_two_margins
from app.network.definitions import Network
from app.network.graph import Graph
from app.network.weights import MAX_BYTES, Weights
from app.processor import keep_freed_memory, threads_with_room, usable_cores

_BUNDLE = "run: python -m data_tools bundle"
CHUNK = 32  # images per core at a time: in float64, the maps of one enlarged image take a megabyte


def compute_reference(graph: Graph, images: np.ndarray) -> Reference:
    """Compute the reference of (N, C, H, W) images, uint8 or float32, on all cores; a terminal shows a progress bar."""
    from tqdm import tqdm  # imported only here: stored results do not need it

    keep_freed_memory()
    threads = threads_with_room(usable_cores())  # the threads of a CPU session may use most of it

    with (
        deferred_interrupts() as check_interrupt,
        ThreadPoolExecutor(threads) as pool,
        tqdm(total=len(images), desc="reference", unit="im", disable=not sys.stderr.isatty()) as progress,
    ):
        found = []
        for part in pool.map(lambda at: _of_chunk(graph, images[at : at + CHUNK]), range(0, len(images), CHUNK)):
            check_interrupt()
            found.append(part)
            progress.update(len(part.labels))
    return Reference(**{name: np.concatenate([getattr(part, name) for part in found]) for name in vars(found[0])})


def _of_chunk(graph: Graph, images: np.ndarray) -> Reference:
    """Compute the reference of a few images; logits are the scores before a softmax.

    For the magnitudes, the layer that gives the logits is run once more, on the absolute values of its input and its
    parameters. A softmax adds 1: it gives two classes the same probability if their logits differ by less than a
    rounding of 1.
    """
    *steps, last = (step for step in graph.steps if not isinstance(step.layer, Softmax | Argmax))
    has_softmax = isinstance(graph.steps[-2].layer, Softmax)
    _, x = replace(graph, steps=tuple(steps)).forward(images, np.float64)
    sizes = {name: np.abs(array) for name, array in graph.parameters.items() if name.startswith(last.layer.name)}
    with np.errstate(over="ignore", invalid="ignore"):  # infinite and NaN values show in the magnitudes
        magnitudes = last.layer.reference(np.abs(x), sizes).max(axis=1) + has_softmax
        logits = last.layer.reference(x, graph.parameters)
        margins = top_two_margins(logits)
        return Reference(logits.argmax(axis=1).astype(np.uint8), margins, magnitudes.astype(np.float32))


def load_reference(weights: Weights, network: Network) -> Reference | None:
    """Load the stored results of shipped weights, identified by hash; None for other weights or a changed network.

    Raises UserError if the shipped reference file is missing, damaged or of other weights.
    """
    known = {digest: name for name, digest in shipped.checksums(shipped.FOLDER).items()}
    if weights.sha256 not in known:
        return None
    origin = shipped.FOLDER / known[weights.sha256]
    path = shipped.reference_path(origin)
    content = read_file(path, MAX_BYTES)
    shipped.check(path, content)
    found = read_pinned(path, content, Wanted(None, ("weights_sha256", "network"), MAX_BYTES))
    if found.attributes.get("weights_sha256") != weights.sha256:
        raise UserError(f"{path} belongs to other weights; {_BUNDLE} {origin}")
    if found.attributes.get("network") != network.digest:  # another network may have arrays of the same shapes
        return None
    return Reference(**found.arrays)


def shipped_reference(weights: Weights, network: Network) -> Reference:
    """Load the stored results of shipped weights. Raises UserError if the network has changed since."""
    found = load_reference(weights, network)
    if found is None:
        path = weights.path
        raise UserError(f"network {network.name} is not the network that {path} was shipped for; {_BUNDLE} {path}")
    return found


def save_reference(path: Path, reference: Reference, weights_sha256: str, network: Network) -> None:
    """Write the results for the weights with this hash, atomically and reproducibly. Raises UserError."""
    content = file_image(vars(reference), {"weights_sha256": weights_sha256, "network": network.digest})
    with replacing(path) as temporary:
        temporary.write_bytes(content)
