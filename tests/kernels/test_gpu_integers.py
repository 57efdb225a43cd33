"""The kernel of two convolutions, the second of bytes, on a card: its emulation's features, and lenet5's labels."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from app.errors import UserError
from app.network.accuracy import agree
from app.network.definitions import LENET5
from app.network.graph import Graph, build
from app.network.reference import load_reference
from app.network.weights import load_weights
from app.planning.matching import Choices, Node
from app.planning.plan import plan
from data_tools.fashion_mnist import open_split
from tests.runtime.test_gpu_session import classify
from tests.support.kernel_cases import Case, architecture
from tests.support.networks_for_tests import random_images
from tests.support.node_emulation import through
from tests.support.pair_device import Runner, poison_shared

pytestmark = pytest.mark.gpu
IMAGES = 70
SETTINGS = [(2, 5), (1, 6), (1, 3), (2, 4), (3, 4), (4, 3)]  # images and warpgroups


@cache
def shipped() -> Graph:
    return build(LENET5, load_weights())


@cache
def convolutions() -> Node:
    """The node of both convolutions; skips on other cards."""
    try:
        return plan(shipped(), architecture(), Choices("int8")).nodes[0]
    except UserError as error:
        pytest.skip(str(error))


@cache
def emulated() -> tuple[np.ndarray, np.ndarray]:
    """Images, and their features: (IMAGES, 784), (IMAGES, 1024)."""
    images = random_images(LENET5, IMAGES)
    return images.reshape(IMAGES, -1), through(convolutions(), images).astype(np.float64)


@pytest.mark.parametrize(("images", "warpgroups"), SETTINGS)
def test_features_are_the_emulation_s(images: int, warpgroups: int) -> None:
    """Save where conv1's sums, which the card rounds, give the next byte; for any number of images."""
    node = convolutions()
    x, wanted = emulated()
    case = Case(node.variant, node.problem, (("images", images), ("warpgroups", warpgroups)))
    runner = Runner(case, list(node.parameters), x)
    for count in (IMAGES, 1, 2, 3, 33):
        poison_shared(0x7FC07FC0)
        (y,) = runner(count)
        error = np.abs(y.get().astype(np.float64) - wanted[:count]) / wanted.max()
        assert error.max() < 0.01, f"{count} images: element {np.unravel_index(error.argmax(), error.shape)}"
        assert (error > 2e-3).mean() < 0.01, f"{count} images: too many other bytes"


def test_labels_of_the_test_images() -> None:
    """All but near-ties; and as many correct answers, but for the near-ties."""
    convolutions()
    weights = load_weights()
    images, truth, _ = open_split("test")
    reference = load_reference(weights, LENET5)
    assert reference is not None
    labels, _ = classify(shipped(), images[:, None], chunk=2000, precision="int8")
    found = agree(labels, reference, "reference", "int8")
    assert found.holds and 0 < len(found.differences) < 30, found.verdict
    assert abs(int((labels == truth).sum()) - weights.expected_correct[10_000]) <= len(found.differences)
