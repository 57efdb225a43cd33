"""Results of the float64 reference on the test images: computed, stored beside the bundled weights, and found again."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app import bundled
from app.accuracy import top_two_margins
from app.cpu import keep_freed_memory, usable_cores
from app.errors import UserError
from app.files import read_file
from app.graph import Graph
from app.hdf5 import Wanted, file_image, read_pinned
from app.interrupts import deferred_interrupts
from app.layers import Softmax
from app.paths import replacing
from app.room import check_room
from app.weights import MAX_BYTES, Weights

CHUNK = 32  # images on a core at a time: in float64, the maps of an enlarged one take a megabyte


@dataclass(frozen=True)
class Reference:
    """Float64 NumPy results on images.

    labels: (N,) uint8, the best class; margins: (N,) float64, its logit minus the second best's: how far the label is
    from flipping.
    """

    labels: np.ndarray
    margins: np.ndarray


def compute_reference(graph: Graph, images: np.ndarray) -> Reference:
    """Of (N, C, H, W) images, uint8 or float32, a chunk to each core at a time; with a progress bar on a terminal."""
    from tqdm import tqdm  # not worth its import where results are stored

    keep_freed_memory()
    check_room(usable_cores())
    has_softmax = isinstance(graph.steps[-2].layer, Softmax)

    def results(at: int) -> tuple[np.ndarray, np.ndarray]:
        scores = graph.reference(images[at : at + CHUNK])
        labels = scores.argmax(axis=1).astype(np.uint8)
        if has_softmax:
            with np.errstate(divide="ignore"):  # a probability may be 0
                scores = np.log(scores)  # the logits, but for what is subtracted from all
        return labels, top_two_margins(scores)

    with (
        deferred_interrupts() as check_interrupt,
        ThreadPoolExecutor(usable_cores()) as pool,
        tqdm(total=len(images), desc="reference", unit="im", disable=not sys.stderr.isatty()) as progress,
    ):
        found = []
        for labels, margins in pool.map(results, range(0, len(images), CHUNK)):
            check_interrupt()
            found.append((labels, margins))
            progress.update(len(labels))
    return Reference(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def load_reference(weights: Weights) -> Reference | None:
    """The stored results if ``weights`` are bundled ones (by hash), else None.

    Raises UserError if the bundled reference file is missing, damaged or of other weights.
    """
    known = {digest: name for name, digest in bundled.checksums(bundled.FOLDER).items()}
    if weights.sha256 not in known:
        return None
    origin = bundled.FOLDER / known[weights.sha256]
    path = bundled.reference_path(origin)
    content = read_file(path, MAX_BYTES)
    bundled.check(path, content)
    found = read_pinned(path, content, Wanted(None, ("weights_sha256",), MAX_BYTES))
    if found.attributes.get("weights_sha256") != weights.sha256:
        raise UserError(f"{path} belongs to other weights; run: python -m data_tools bundle {origin}")
    return Reference(found.arrays["labels"], found.arrays["margins"])


def save_reference(path: Path, reference: Reference, weights_sha256: str) -> None:
    """Write the results of the weights with this hash, atomically and reproducibly. Raises UserError."""
    arrays: dict[str, np.ndarray] = {
        "labels": reference.labels.astype(np.uint8),
        "margins": reference.margins.astype(np.float64),
    }
    content = file_image(arrays, {"weights_sha256": weights_sha256})
    with replacing(path) as temporary:
        temporary.write_bytes(content)
