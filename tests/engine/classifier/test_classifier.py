"""Test the classifier on the CPU: results for every form of images, and the errors for wrong arguments."""

from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.engine.classifier import Classifier
from app.engine.classifier.arguments import BadArgumentError
from app.engine.cpu import CpuEngine
from app.files.shipped import weights_path
from app.network.definitions import LENET5, MINIDNN86, NETWORKS, Network
from app.network.weights import save_weights
from app.planning.request import NetworkRequest
from tests.engine.classifier import soak
from tests.support.networks_for_tests import ODD, random_graph, random_images


@pytest.fixture(scope="module")
def lenet5() -> Classifier:
    return Classifier(device="cpu")


@pytest.mark.parametrize("network", NETWORKS)
def test_labels_equal_the_engines(network: str) -> None:
    with Classifier(network, device="cpu") as classifier:
        assert (classifier.device, classifier.why_cpu) == ("cpu", None)
        images = random_images(NETWORKS[network], 3)
        labels = CpuEngine(classifier.graph).run(images).labels
        np.testing.assert_array_equal(classifier(images), labels)
        scores = classifier.graph.forward(images, np.float32)[0]
        np.testing.assert_allclose(classifier.probabilities.sum(axis=1), 1, rtol=1e-5)
        ended = classifier.logits - classifier.logits.max(axis=1, keepdims=True)
        wanted = np.log(scores) if network != "lenet5" else scores
        np.testing.assert_allclose(ended, wanted - wanted.max(axis=1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_images_come_in_every_shape_and_type(lenet5: Classifier) -> None:
    images = random_images(LENET5, 5)
    labels = lenet5(images)
    logits, probabilities = lenet5.logits, lenet5.probabilities
    assert (labels.dtype, labels.shape, logits.dtype, logits.shape) == (np.uint8, (5,), np.float32, (5, 10))
    wide = np.zeros((5, 1, 28, 40), np.uint8)
    wide[..., 6:34] = images
    for same in (
        images[:, 0],
        np.asfortranarray(images),
        wide[..., 6:34],
        images / 255,
        (images / np.float32(255))[:, 0],
    ):
        np.testing.assert_array_equal(lenet5(same), labels)
        np.testing.assert_array_equal(lenet5.logits, logits)
    for index in range(5):
        label = lenet5(images[index, 0])
        assert label.shape == () and int(label) == labels[index]
        assert lenet5.logits.shape == lenet5.probabilities.shape == (10,)
        np.testing.assert_allclose(lenet5.probabilities, probabilities[index], rtol=1e-5)
    halves = lenet5((images / 256).astype(np.float16))  # not multiples of 1/255, but accepted
    assert halves.shape == (5,)
    assert lenet5(images[:0]).shape == (0,) and lenet5.probabilities.shape == (0, 10)


def test_one_image_of_several_channels(tmp_path: Path) -> None:
    graph, images = random_graph(ODD), random_images(ODD, 2)
    save_weights(tmp_path / "odd.h5", graph.parameters, network=ODD, input_scale=graph.input_scale)
    with Classifier(tmp_path / "odd.h5", device="cpu") as classifier:
        assert classifier.classes is None
        assert classifier(images[0]) == classifier(images)[0]


def test_precision_and_device_are_described() -> None:
    with Classifier("mlp", device="cpu") as classifier:
        assert (classifier.precision, classifier.describe()["kind"]) == ("fp32", "cpu")
    for describe in (lambda: classifier.precision, classifier.describe):
        with pytest.raises(BadArgumentError, match="the classifier is closed"):
            describe()


@pytest.mark.parametrize("network", [MINIDNN86])
def test_enlarged_images_give_the_same_results(network: Network) -> None:
    images = random_images(network, 2)
    with Classifier(network.name, device="cpu") as classifier:
        enlarged = network.layers[0].reference(images, {})
        small = classifier(images), classifier.logits
        np.testing.assert_array_equal(classifier(enlarged), small[0])
        np.testing.assert_array_equal(classifier.logits, small[1])
        with pytest.raises(BadArgumentError, match=r"^the images are fractions of pixels, but network minidnn86 enl"):
            classifier(np.full((28, 28), 0.3))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 28, 28), np.int64), r"the images are int64: give uint8 pixels, or floats in \[0, 1\]"),
        ([[0] * 28] * 28, "the images are int64: give uint8 pixels"),
        ("photo.jpg", "the images are str: give an array of pixels"),
        (np.zeros((28, 28), bool), "the images are bool: give uint8"),
        ([[0, 1], [2]], "the images are no array: .*inhomogeneous"),
        (np.full((1, 28, 28), 254.0), r"the array of images contains values in 254 … 254; scale them to \[0, 1\]"),
        (np.full((28, 28), -0.1, np.float32), "in -0.1 … -0.1"),
        (np.eye(28, dtype=np.float32) * np.float32(1.0000001), r"in 0 … 1\.0000001; scale them"),
        (np.full((28, 28), np.nan), "that are not finite"),
        (np.zeros((28,), np.uint8), r"the images have the shape \(28\), network lenet5 reads \(N, 1, 28, 28\)"),
        (np.zeros((1, 1, 1, 28, 28), np.uint8), r"the shape \(1, 1, 1, 28, 28\)"),
        (np.zeros((2, 3, 28, 28), np.uint8), r"the shape \(2, 3, 28, 28\)"),
        (np.zeros((5, 27, 28), np.uint8), r"the shape \(5, 27, 28\)"),
        (np.uint8(3), r"the shape \(\)"),
    ],
)
def test_wrong_images_are_refused_in_one_line(lenet5: Classifier, images: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        lenet5(images)
    assert isinstance(refused.value, UserError) and "\n" not in str(refused.value)


def test_an_empty_array_takes_images(lenet5: Classifier, tmp_path: Path) -> None:
    images, empty = random_images(LENET5, 5), lenet5.empty(5)
    assert (empty.shape, empty.dtype, lenet5.empty(0).shape) == ((5, 28, 28), np.uint8, (0, 28, 28))
    empty[...] = images[:, 0]
    np.testing.assert_array_equal(lenet5(empty), lenet5(images))
    with pytest.raises(BadArgumentError, match="n=-1: give a number of images"):
        lenet5.empty(-1)
    graph = random_graph(ODD)
    save_weights(tmp_path / "odd.h5", graph.parameters, network=ODD, input_scale=graph.input_scale)
    with Classifier(tmp_path / "odd.h5", device="cpu") as classifier:
        assert classifier.empty(3).shape == (3, *ODD.input_shape)
    with pytest.raises(UserError, match="the classifier is closed"):
        classifier.empty(3)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for arguments, message in (
        ({"device": "gpu"}, "device='gpu' is none of auto, cuda, cuda:N, cpu; did you mean cpu?"),
        ({"precision": "fp61"}, "precision='fp61': choose one of auto, fp32, .*; did you mean fp16"),
        ({"network_or_weights": "lenet6"}, "unknown network 'lenet6'"),
        ({"network_or_weights": "no.h5"}, "no.h5"),
        ({"network_or_weights": "no.toml"}, "no.toml"),
        ({"network_or_weights": tmp_path}, str(tmp_path)),
        ({"device": "cpu", "precision": "fp16"}, "--precision fp16 is for the GPU"),
        ({"device": "cpu", "sparse": False}, "--no-sparse is for the GPU"),
        ({"device": "cpu", "resident": True}, "resident=True needs a GPU: device is cpu"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            Classifier(**arguments)
        assert isinstance(refused.value, UserError)


def test_from_request_opens_a_classifier() -> None:
    request = NetworkRequest(network="mlp", weights=weights_path("mlp"))
    with Classifier.from_request(request, "cpu") as classifier:
        assert classifier.graph.network.name == "mlp"
        assert classifier.classes is not None and len(classifier.classes) == 10


def test_errors_before_the_first_call_and_after_close() -> None:
    classifier = Classifier("mlp", device="cpu")
    with pytest.raises(UserError, match="nothing was classified yet"):
        _ = classifier.logits
    images = random_images(LENET5, 1)
    classifier(images)
    classifier.close()
    classifier.close()
    assert classifier.logits.shape == (1, 10)
    with pytest.raises(UserError, match="the classifier is closed"):
        classifier(images)


def test_threads_share_classifiers_and_open_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = soak.soak(1, device="cpu")
    assert found.calls > 4 and found.differences == [] and found.notes == []
    kinds = ("lenet5 auto", "mlp auto", "ordinary arrays", "strided arrays", "own classifiers", "shared classifiers")
    assert all(found.counts[kind] for kind in kinds), found.counts
    right = soak.classify
    monkeypatch.setattr(soak, "classify", lambda *given, **how: [-part for part in right(*given, **how)])
    assert len(soak.soak(0.2, threads=1, device="cpu").differences) > 0
