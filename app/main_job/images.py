"""Load the images that a command classifies and their labels, and check that they fit the network."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.engine.request import UNLABELLED, LabelledImages
from app.network.graph import Graph
from app.network.network import Network
from data_tools.dataset import Dataset, load_fashion_mnist, load_files, placeholder_fashion_mnist


def load_images(
    wanted: LabelledImages,
    graph: Graph,
    check: Callable[[Dataset], object],
    allocate: Callable[[int], np.ndarray] | None,
) -> tuple[Dataset, Graph]:
    """Return images, with labels if there are any, and the graph for the images' shape. Raises UserError.

    check: called before Fashion-MNIST is fetched, with a ``Dataset`` that has only its size, to report wrong options
    early. allocate: function that returns memory of a number of bytes for the images; None: NumPy does.
    """
    unlabelled = wanted.labels == UNLABELLED
    if wanted.data is None:
        if wanted.labels is not None and not unlabelled:
            raise UserError("--labels FILE needs --data FILE; Fashion-MNIST has its own labels")
        split = wanted.split or "test"
        announced = placeholder_fashion_mnist(split)
        graph_for_images(graph, announced)
        check(announced)
        data = load_fashion_mnist(split, wanted.data_dir, allocate)
    else:
        for option, value in (("--data-dir", wanted.data_dir), ("--split", wanted.split)):
            if value is not None:
                raise UserError(f"{option} is for Fashion-MNIST: leave it out with --data")
        labels = None if wanted.labels is None or unlabelled else Path(wanted.labels)
        data = load_files(wanted.data, labels, allocate, unlabelled=unlabelled)
    fit = graph_for_images(graph, data)
    if unlabelled:
        return replace(data, labels=None), fit
    if data.labels is not None and data.labels.max() >= graph.class_count:
        raise UserError(
            f"{data.source} has label {data.labels.max()}, but the network has classes 0 to {graph.class_count - 1}: "
            "use labels of the same classes, or --labels none"
        )
    return data, fit


def graph_for_images(graph: Graph, data: Dataset) -> Graph:
    """Return the network's graph for the shape of the images. Raises UserError if the network cannot read them."""
    shape, network = data.images.shape[1:], graph.network
    found = graph.graph_for_shape(shape)
    if found is None:
        either = "".join(f" or {step.out_shape}" for step in graph.steps[:1] if step.layer.keeps_bytes)
        raise shape_mismatch_error(data, network, either)
    if found.steps[0].layer.keeps_bytes and data.images.dtype != np.uint8:
        raise UserError(
            f"{data.source} contains fractions of pixel values, but network {network.name} enlarges whole ones: "
            "store its images as uint8"
        )
    return found


def shape_mismatch_error(data: Dataset, network: Network, either: str = "") -> UserError:
    """Return the error for images of another shape than the network's. either: text to add, such as another shape."""
    shape = data.images.shape[1:]
    remedy = "resize them" if shape[0] == network.input_shape[0] else "name images with as many channels"
    return UserError(
        f"{data.source} has images of shape {shape} (channels, height, width), "
        f"but network {network.name} reads {network.input_shape}{either}: {remedy}, or name another network"
    )
