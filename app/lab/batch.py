"""Load test images and shipped weights for measurements of whole programs, and check the labels."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.interrupts import exit_on_interrupt
from app.layers import Shape
from app.network.graph import Graph, load_network
from app.network.reference import compute_reference, load_reference
from app.network.verdicts import Reference, compare_labels, judge_answers
from app.network.weights import Weights
from data_tools.dataset import load_fashion_mnist
from data_tools.fashion_mnist import CLASSES

UNWRITTEN = 255  # no valid label: outputs are filled with it before a timed run
ONE_PIECE = "the batch is one piece"  # the reason for not dividing it, where it fits the L2 cache
L2_BYTES = 50 << 20  # the H100's, for cards that do not report theirs


class Batch(Frozen):
    """The first N test images and a network's shipped weights; random images or weights where none exist.

    images: (N, C, H, W) uint8 in page-locked memory. truth: (N,) uint8. reference: float64 results of at least N
    images.
    """

    graph: Graph
    weights: Weights
    images: np.ndarray
    truth: np.ndarray
    reference: Reference

    def first_images(self, count: int) -> "Batch":
        """Return the batch of the first ``count`` images."""
        return replace(self, images=self.images[:count], truth=self.truth[:count])

    def score(self, labels: np.ndarray, arithmetic: str | None) -> dict[str, Any]:
        """Compare labels (N,) with the truth and the float64 reference; return the results as fields of a report.

        correct, changed: number of correct labels, and of labels that differ from the reference's. largest_margin: of
        the latter. wrong: whether the labels break the accuracy rule for the arithmetic type; False without a type.
        """
        found = compare_labels(labels, self.reference, "reference", arithmetic or "float32")
        expected = self.weights.promised_correct_count(self.graph.network, len(labels))
        return {
            "correct": int((labels == self.truth).sum()),
            "changed": len(found.differences),
            "largest_margin": max((difference.margin for difference in found.differences), default=None),
            "wrong": arithmetic is not None and not judge_answers(labels, self.truth, expected, found).passed,
        }


def load_batch(network: str, count: int, *, checked: bool = True) -> Batch:
    """Load the first ``count`` test images into page-locked memory. network: a name or a file.

    A network without shipped weights gets random weights. A network whose input shape or number of classes is not that
    of the test images gets random images. In both cases the reference is computed; it is the truth of random images.
    checked: whether the labels will be checked. If not, a reference that is not stored is computed for one image only.
    Raises UserError if there are fewer test images than ``count``.
    """
    graph, weights = load_network(network, None, shapes_only=True)
    asked = graph.network
    with exit_on_interrupt():
        from app.cuda.memory import pinned_array

    if asked.input_shape != (1, 28, 28) or graph.class_count < len(CLASSES):
        images = random_images(asked.input_shape, count)
        reference = compute_reference(graph, images if checked else images[:1])
        return Batch(graph, weights, images, reference.labels, reference)
    data = load_fashion_mnist("test", None, lambda nbytes: pinned_array((nbytes,), np.uint8))
    if count > len(data.images):
        raise UserError(f"--batch {count} is more than the {len(data.images)} images of {data.source}: use fewer")
    if data.labels is None:
        raise ValueError("the test images have labels")
    images, truth = data.images[:count], data.labels[:count]
    reference = load_reference(weights, asked) or compute_reference(graph, images if checked else images[:1])
    return Batch(graph, weights, images, truth, reference)


def random_images(shape: Shape, count: int) -> np.ndarray:
    """Return ``count`` images of random bytes in page-locked memory: (count, C, H, W) uint8."""
    from app.cuda.memory import pinned_array

    images = pinned_array((count, *shape), np.uint8)
    images[:] = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    return images


def l2_chunk_size(graph: Graph, images: int, itemsize: int, l2_bytes: int = 0) -> int:
    """Return how many images to compute at a time, so that a layer's input and output fit the L2 cache together.

    All chunks have equal length. Return the whole batch if it fits, or if no such length divides it well. itemsize:
    bytes per number of an activation. l2_bytes: size of the cache; 0 if the card does not report it.
    """
    most = max(prod(step.in_shape) + prod(step.out_shape) for step in graph.steps) * itemsize
    fitting = min(max((l2_bytes or L2_BYTES) // most, 1), images)
    size = max(size for size in range(1, fitting + 1) if images % size == 0)
    return size if 4 * size >= fitting else images
