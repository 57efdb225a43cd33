"""The shipped weights keep their promises, by an engine that shares no code with ours."""

from functools import lru_cache

import numpy as np
import pytest

from app.files import shipped
from app.network.definitions import NETWORKS, Network
from app.network.reference import load_reference
from app.network.verdicts import COUNTED, compare_labels, correct_counts
from app.network.weights import load_weights
from data_tools.fashion_mnist import open_split
from tests.support.oracle import onnx_logits

# Images that the engine classifies; the other networks enlarge theirs.
COUNT = {"lenet5": 2000, "lenet5_dense": 2000, "mlp": 10_000}
FEW, PART = 250, 250
MAX_BYTES = 14_500_000
# At least, over all test images.
ACCURACY = {"lenet5": 0.933, "lenet5_dense": 0.933, "fa19": 0.90, "k7": 0.90, "minidnn86": 0.915, "mlp": 0.88}

of_each = pytest.mark.parametrize("name", [*NETWORKS, "lenet5_dense"])


def network_of(name: str) -> Network:
    """The network of the shipped weights with this name."""
    return NETWORKS[name.removesuffix("_dense")]


@lru_cache(1)
def split_images() -> tuple[np.ndarray, np.ndarray]:
    """(10000, 1, 28, 28) and (10000,), uint8."""
    images, truth, _ = open_split("test")
    return images[:, None], truth


@lru_cache
def engine_labels(name: str) -> np.ndarray:
    """What ONNX Runtime makes of the first images in float32."""
    images = split_images()[0][: COUNT.get(name, FEW)]
    arrays = load_weights(shipped.find_shipped_weights(name)).arrays
    parts = (images[at : at + PART].astype(np.float32) / 255 for at in range(0, len(images), PART))
    return np.concatenate([onnx_logits(network_of(name), arrays, part).argmax(axis=1) for part in parts])


@pytest.mark.fashion_mnist
@of_each
def test_engine_agrees_with_the_stored_reference(name: str) -> None:
    reference = load_reference(load_weights(shipped.find_shipped_weights(name)), network_of(name))
    assert reference is not None and len(reference.labels) == len(reference.margins) == 10_000
    found = compare_labels(engine_labels(name), reference, "reference")
    assert found.holds and len(found.differences) <= 1, found.differences


@pytest.mark.fashion_mnist
@of_each
def test_promises_are_what_the_reference_gets_right(name: str) -> None:
    """And good enough to ship."""
    weights = load_weights(shipped.find_shipped_weights(name))
    reference = load_reference(weights, network_of(name))
    assert reference is not None and weights.network == network_of(name).name
    assert weights.expected_correct == correct_counts(reference.labels, split_images()[1])
    assert set(weights.expected_correct) == set(COUNTED)
    assert weights.expected_correct[10_000] >= ACCURACY[name] * 10_000


def test_every_network_has_weights() -> None:
    names = {path.name for path in shipped.FOLDER.iterdir()}
    assert shipped.read_checksums(shipped.FOLDER).keys() == names - {shipped.CHECKSUMS}


def test_all_together_are_small() -> None:
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < MAX_BYTES
