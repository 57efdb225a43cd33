"""Test images and shipped weights to measure whole applications on, and the check of their labels."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from app.cuda import device
from app.errors import UserError
from app.interrupts import exit_on_interrupt
from app.layers import Shape
from app.network import shipped
from app.network.accuracy import Reference, agree, judge
from app.network.graph import Graph, build, find_network
from app.network.reference import shipped_reference
from app.network.weights import Weights, load_weights
from data_tools.dataset import load_fashion_mnist

UNWRITTEN = 255  # no valid label: outputs are filled with it before a timed run
L2_BYTES = 50 << 20  # the H100's, for cards that do not report theirs


@dataclass(frozen=True)
class Batch:
    """The first N test images, with a network's shipped weights.

    images: (N, 1, 28, 28) uint8 in page-locked memory; truth: (N,) uint8; reference: float64, all test images.
    """

    graph: Graph
    weights: Weights
    images: np.ndarray
    truth: np.ndarray
    reference: Reference

    def score(self, labels: np.ndarray, arithmetic: str | None) -> dict[str, Any]:
        """Count the correct labels (N,) and those that differ from the float64 reference; find their largest margin.

        wrong: whether they break the accuracy rule for the arithmetic type; without a type they are not judged.
        """
        found = agree(labels, self.reference, "reference", arithmetic or "float32")
        expected = self.weights.promised(self.graph.network, len(labels))
        return {
            "correct": int((labels == self.truth).sum()),
            "changed": len(found.differences),
            "largest_margin": max((difference.margin for difference in found.differences), default=None),
            "wrong": arithmetic is not None and not judge(labels, self.truth, expected, found).passed,
        }


def check_ready(network: str) -> None:
    """Raise UserError if no weights of the network are shipped, or there is no GPU."""
    shipped.find(find_network(network).name)
    device.require_gpu("bench")


def load_batch(network: str, count: int) -> Batch:
    """Load the first ``count`` test images into page-locked memory.

    Raises UserError if there are fewer than ``count``, or no weights of the network are shipped.
    """
    weights = load_weights(shipped.find(find_network(network).name))
    with exit_on_interrupt():
        from app.cuda.memory import pinned_array

    data = load_fashion_mnist("test", None, lambda nbytes: pinned_array((nbytes,), np.uint8))
    if count > len(data.images):
        raise UserError(f"--batch {count} is more than the {len(data.images)} images of {data.source}: use fewer")
    if data.labels is None:
        raise ValueError("the test images have labels")
    graph = build(find_network(network), weights)
    reference = shipped_reference(weights, graph.network)
    return Batch(graph, weights, data.images[:count], data.labels[:count], reference)


def random_images(shape: Shape, count: int) -> np.ndarray:
    """Return ``count`` images of random bytes in page-locked memory: (count, C, H, W) uint8."""
    from app.cuda.memory import pinned_array

    images = pinned_array((count, *shape), np.uint8)
    images[:] = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    return images


def piece_size(graph: Graph, images: int, itemsize: int, l2_bytes: int = 0) -> int:
    """Choose a number of images per piece: as many as let a layer's input and output lie in the L2 cache together.

    All pieces have equal length. Returns the whole batch where it fits, or where no such length divides it well.
    itemsize: bytes per number of an activation. l2_bytes: size of the cache, 0 where the card does not report it.
    """
    most = max(prod(step.in_shape) + prod(step.out_shape) for step in graph.steps) * itemsize
    fitting = min(max((l2_bytes or L2_BYTES) // most, 1), images)
    size = max(size for size in range(1, fitting + 1) if images % size == 0)
    return size if 4 * size >= fitting else images
