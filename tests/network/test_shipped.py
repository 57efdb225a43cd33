"""Test the shipped weights' promises and stored references with ONNX Runtime, which shares no code with ours."""

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

# Images that ONNX Runtime classifies; networks that enlarge images get FEW.
COUNT = {"lenet5": 2000, "lenet5_dense": 2000, "mlp": 10_000}
FEW, PART = 250, 250
MAX_BYTES = 14_500_000
# Least accuracy over all test images.
ACCURACY = {"lenet5": 0.933, "lenet5_dense": 0.933, "fa19": 0.90, "k7": 0.90, "minidnn86": 0.915, "mlp": 0.88}

each_weights_file = pytest.mark.parametrize("name", [*NETWORKS, "lenet5_dense"])


def network_of_weights(name: str) -> Network:
    """Return the network of the shipped weights with this name."""
    return NETWORKS[name.removesuffix("_dense")]


@lru_cache(1)
def load_test_images() -> tuple[np.ndarray, np.ndarray]:
    """Return the test images (10000, 1, 28, 28) and their labels (10000,), uint8."""
    images, truth, _ = open_split("test")
    return images[:, None], truth


@lru_cache
def onnx_labels(name: str) -> np.ndarray:
    """Return ONNX Runtime's labels of the first test images, computed in float32."""
    images = load_test_images()[0][: COUNT.get(name, FEW)]
    arrays = load_weights(shipped.find_shipped_weights(name)).arrays
    parts = (images[at : at + PART].astype(np.float32) / 255 for at in range(0, len(images), PART))
    return np.concatenate([onnx_logits(network_of_weights(name), arrays, part).argmax(axis=1) for part in parts])


@pytest.mark.fashion_mnist
@each_weights_file
def test_onnx_runtime_agrees_with_the_stored_reference(name: str) -> None:
    reference = load_reference(load_weights(shipped.find_shipped_weights(name)), network_of_weights(name))
    assert reference is not None and len(reference.labels) == len(reference.margins) == 10_000
    found = compare_labels(onnx_labels(name), reference, "reference")
    assert found.holds and len(found.differences) <= 1, found.differences


@pytest.mark.fashion_mnist
@each_weights_file
def test_promises_equal_the_references_correct_counts(name: str) -> None:
    """The promised accuracy is at least ACCURACY."""
    weights = load_weights(shipped.find_shipped_weights(name))
    reference = load_reference(weights, network_of_weights(name))
    assert reference is not None and weights.network == network_of_weights(name).name
    assert weights.expected_correct == correct_counts(reference.labels, load_test_images()[1])
    assert set(weights.expected_correct) == set(COUNTED)
    assert weights.expected_correct[10_000] >= ACCURACY[name] * 10_000


def test_all_shipped_files_have_checksums() -> None:
    names = {path.name for path in shipped.FOLDER.iterdir()}
    assert shipped.read_checksums(shipped.FOLDER).keys() == names - {shipped.CHECKSUMS}


def test_the_shipped_files_are_small() -> None:
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < MAX_BYTES
