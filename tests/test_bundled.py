"""The bundled weights keep their promises, by an engine that shares no code with ours."""

from __future__ import annotations

import numpy as np
import pytest

from app.cpu import CpuSession
from app.graph import build, find_network
from app.networks import LENET5
from app.weights import load_reference, load_weights
from data_tools.fashion_mnist import load_split
from tests.oracle import onnx_logits

PART = 250


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """The test images, (10000, 28, 28) uint8."""
    return load_split("test")[0]


@pytest.fixture(scope="module")
def engine_labels(images: np.ndarray) -> np.ndarray:
    """What ONNX Runtime makes of them in float32."""
    arrays = load_weights().arrays
    parts = (images[at : at + PART, None].astype(np.float32) / 255 for at in range(0, len(images), PART))
    return np.concatenate([onnx_logits(LENET5, arrays, part).argmax(axis=1) for part in parts])


def test_engine_agrees_with_the_stored_reference(engine_labels: np.ndarray) -> None:
    reference = load_reference(load_weights())
    assert reference is not None and len(reference.labels) == 10_000
    np.testing.assert_array_equal(engine_labels, reference.labels)


def test_engine_keeps_the_promises(engine_labels: np.ndarray) -> None:
    right = engine_labels == load_split("test")[1]
    promised = load_weights().expected_correct
    assert promised == {count: right[:count].sum() for count in (100, 1000, 10_000)}


def test_cpu_route_agrees_with_the_engine(images: np.ndarray, engine_labels: np.ndarray) -> None:
    weights = load_weights()
    labels = np.full(len(images), 255, np.uint8)
    CpuSession(build(find_network(weights.network), weights)).run(images[:, None], labels)
    np.testing.assert_array_equal(labels, engine_labels)
