"""Compute the float64 reference, store its results on test images beside the shipped weights, and load them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.interrupts import progress_bar
from app.base.processor import core_count, count_fitting_threads, keep_freed_memory
from app.files import shipped
from app.files.hdf5 import ReadRequest, build_hdf5_bytes
from app.files.reading import read_file
from app.files.writing import replace_atomically
from app.layers import Argmax, Sigmoid, Softmax, Tanh
from app.network.definitions import Network
from app.network.graph import Graph
from app.network.verdicts import Reference, top_two_margins
from app.network.weights import MAX_BYTES, Weights

_BUNDLE = "run: python -m data_tools bundle"
CHUNK = 32  # images per core at a time: in float64, the maps of one enlarged image take a megabyte


def compute_reference(graph: Graph, images: np.ndarray) -> Reference:
    """Return the float64 results for images (N, C, H, W), uint8 or float32; use all cores and show a progress bar."""
    keep_freed_memory()
    threads = count_fitting_threads(core_count())  # the threads of a CPU engine may use most of it

    with progress_bar(len(images), desc="reference", unit="im") as progress, ThreadPoolExecutor(threads) as pool:
        found = []
        for part in pool.map(lambda at: _compute_chunk(graph, images[at : at + CHUNK]), range(0, len(images), CHUNK)):
            found.append(part)
            progress(len(part.labels))
    return Reference(**{name: np.concatenate([getattr(part, name) for part in found]) for name in vars(found[0])})


def _compute_chunk(graph: Graph, images: np.ndarray) -> Reference:
    """Return the float64 results for a few images; logits are the scores before a softmax.

    For the magnitudes, the last layer with weights runs once more on the absolute values of its input and parameters.
    Each saturating function after it (tanh, sigmoid, softmax) adds 1, because the function gives equal scores to
    classes that differ by less than a rounding of 1.
    """
    at = max(at for at, step in enumerate(graph.steps) if step.layer.name in graph.parameters)
    product, *behind = (step.layer for step in graph.steps[at:])
    saturating = sum(isinstance(layer, Tanh | Sigmoid | Softmax) for layer in behind)
    while behind and isinstance(behind[-1], Softmax | Argmax):  # they do not change which logit is the best
        behind.pop()
    x = graph.input_of_step(at, images, np.float64)
    names = graph.parameters.keys() & graph.steps[at].parameter_shapes.keys()
    sizes = {name: np.abs(graph.parameters[name]) for name in names}
    with np.errstate(over="ignore", invalid="ignore"):  # infinite and NaN values show in the magnitudes
        magnitudes = product.reference(np.abs(x), sizes).reshape(len(x), -1).max(axis=1) + saturating
        logits = product.reference(x, graph.parameters)
        for layer in behind:
            logits = layer.reference(logits, graph.parameters)
        margins = top_two_margins(logits)
        return Reference(logits.argmax(axis=1).astype(np.uint8), margins, magnitudes.astype(np.float32))


def load_reference(weights: Weights, network: Network) -> Reference | None:
    """Return the stored results of shipped weights, found by hash; None for other weights or a changed network.

    Raises UserError if the shipped file is missing, damaged or of other weights.
    """
    known = {digest: name for name, digest in shipped.read_checksums(shipped.FOLDER).items()}
    if weights.sha256 not in known:
        return None
    origin = shipped.FOLDER / known[weights.sha256]
    path = shipped.reference_path(origin)
    content = read_file(path, MAX_BYTES)
    shipped.check_shipped_hash(path, content)
    found = shipped.read_verified_hdf5(path, content, ReadRequest(None, ("weights_sha256", "network"), MAX_BYTES))
    if found.attributes.get("weights_sha256") != weights.sha256:
        raise UserError(f"{path} belongs to other weights; {_BUNDLE} {origin}")
    if found.attributes.get("network") != network.digest:  # another network may have arrays of the same shapes
        return None
    return Reference(**found.arrays)


def shipped_reference(weights: Weights, network: Network) -> Reference:
    """Return the stored results of shipped weights. Raises UserError if there are none for this network."""
    found = load_reference(weights, network)
    if found is None:
        path = weights.path
        raise UserError(f"network {network.name} is not the network that {path} was shipped for; {_BUNDLE} {path}")
    return found


def save_reference(path: Path, reference: Reference, weights_sha256: str, network: Network) -> None:
    """Write reference results atomically; equal arguments give equal bytes. Raises UserError.

    weights_sha256: hash of the weights file.
    """
    content = build_hdf5_bytes(vars(reference), {"weights_sha256": weights_sha256, "network": network.digest})
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)
