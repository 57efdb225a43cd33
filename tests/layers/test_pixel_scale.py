"""Test networks that do not divide pixels by 255: with first weights divided by 255 they give the same labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import BY_NAME
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Linear, MaxPool, Relu, Resize, Tanh
from app.network.definitions import LENET5, Network
from app.network.graph import Graph, build_graph
from app.network.reference import compute_reference
from app.network.weights import Weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import (
    GENERAL,
    TEST_NETWORKS,
    check_labels,
    network,
    random_graph,
    random_images,
    score_scale,
)

# A network of every kind of layer, for images of three colours that are enlarged by the course's rule.
COLOUR = network(
    "colour",
    (3, 12, 14),
    Resize("resize", size=17, rule="course"),
    Conv2d("conv1", maps=6, kernel=5),
    Relu("relu1"),
    MaxPool("pool1", window=2),
    Conv2d("conv2", maps=16, kernel=3),
    Tanh("tanh1"),
    AvgPool("pool2", window=2),
    Flatten("flatten"),
    Linear("fc1", outputs=20),
    Relu("relu2"),
    Linear("fc2", outputs=7),
    Argmax("argmax"),
)
# lenet5 for three colours, which no kernel of two convolutions supports.
LENET5_COLOUR = replace(LENET5, name="lenet5_colour", input_shape=(3, 28, 28))
NETWORKS = pytest.mark.parametrize("network", [*TEST_NETWORKS, COLOUR, LENET5_COLOUR], ids=lambda network: network.name)
# Floats are in [0, 1]; only bytes can be enlarged.
KINDS = pytest.mark.parametrize(
    ("network", "kind"),
    [
        pytest.param(network, kind, id=f"{network.name}-{kind}")
        for network in (*TEST_NETWORKS, COLOUR, LENET5_COLOUR)
        for kind in ("uint8", "float32")
        if kind == "uint8" or not network.layers[0].keeps_bytes
    ],
)
IMAGES = 17


def move_scale_to_weights(graph: Graph, *, by_file: bool = False) -> Graph:
    """Return an equivalent graph that divides its first weights by 255 instead of the pixels.

    by_file: the weights file states the pixel scale of 1 instead of the network.
    """
    first = next(step.layer.name for step in graph.steps if step.parameter_shapes)
    arrays = dict(graph.parameters) | {first: (graph.parameters[first].astype(np.float64) / 255).astype(np.float32)}
    weights = Weights(arrays, graph.network.name, Path("random"), input_scale=1.0 if by_file else None)
    return build_graph(graph.network if by_file else replace(graph.network, pixel_scale=1.0), weights)


@pytest.mark.grid
@NETWORKS
@pytest.mark.parametrize("by_file", [False, True], ids=["network", "file"])
def test_the_reference_gives_the_same_labels(network: Network, by_file: bool) -> None:
    graph, images = random_graph(network), random_images(network, IMAGES)
    other, expected = move_scale_to_weights(graph, by_file=by_file), compute_reference(graph, images)
    assert (other.input_scale == 1 and other.network.digest != graph.network.digest) or by_file
    logits = graph.reference(images)
    np.testing.assert_allclose(other.reference(images), logits, rtol=0, atol=1e-6 * score_scale(graph, logits))
    found = compute_reference(other, images)
    check_labels(found.labels, expected)
    np.testing.assert_allclose(found.magnitudes, expected.magnitudes, rtol=1e-5)


@pytest.mark.grid
@KINDS
@pytest.mark.parametrize("precision", [name for name in GENERAL if BY_NAME[name].offered])
def test_kernels_and_their_parameters_are_the_same(network: Network, kind: str, precision: str) -> None:
    """The pixel scale is multiplied into the weights before they are rounded to the precision's type."""
    graph = random_graph(network)
    both = (graph, move_scale_to_weights(graph))
    ours, other = (plan(one, "sm_90a", Choices(precision), input_dtype=kind).nodes for one in both)
    assert [(node.name, node.variant, node.problem) for node in ours] == [
        (node.name, node.variant, node.problem) for node in other
    ]
    for one, two in zip(ours, other, strict=True):
        for a, b in zip(one.parameters, two.parameters, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_allclose(b, a, rtol=2e-3 if a.dtype == np.float16 else 1e-6)


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("precision", [name for name in GENERAL if BY_NAME[name].offered])
def test_the_gpu_gives_the_same_labels(network: Network, kind: str, precision: str) -> None:
    """On a GPU, in chunks from page-locked memory and at once from pageable memory; labels may differ at near-ties."""
    from app.cuda.device import describe_gpu
    from tests.engine.test_gpu_engine import classify

    graph = random_graph(network)
    other = move_scale_to_weights(graph)
    try:
        plan(other, describe_gpu()["architecture"], Choices(precision), input_dtype=kind)
    except UserError as error:  # this card has no kernels for the precision
        pytest.skip(str(error))
    images = random_images(network, IMAGES)
    reference = compute_reference(graph, images)
    given = images if kind == "uint8" else (images / np.float32(255)).astype(np.float32)
    labels, logits = classify(other, given, chunk=10, precision=precision)
    assert np.isfinite(logits).all()
    check_labels(labels, reference, BY_NAME[precision].dtype)
    again, same = classify(other, given, chunk=IMAGES, streams=1, pinned=False, precision=precision)
    assert np.array_equal(labels, again) and np.array_equal(logits.view(np.uint32), same.view(np.uint32))
