"""Test the verdicts end to end: wrong labels, weights and pixel scales fail, and right ones pass at any scale."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.base.precision import BY_DTYPE
from app.cli import main
from app.engine.cpu import CpuEngine
from app.files import shipped
from app.layers import Argmax, Flatten, Linear, Parameters, Relu, Softmax, Tanh
from app.network.definitions import LENET5, NETWORKS, Network
from app.network.graph import Graph
from app.network.reference import compute_reference
from app.network.verdicts import compare_labels
from data_tools.dataset import Dataset
from data_tools.idx import write_idx
from tests.support.bundle_for_tests import IMAGES, TRUTH
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import multiplied, random_graph, random_images
from tests.support.shell import Refuses

EXACTLY = settings(derandomize=True, max_examples=25, database=None)
SCALES = st.floats(-30, 30).map(lambda exponent: 10.0**exponent)
ALL_DTYPES = pytest.mark.parametrize("dtype", BY_DTYPE)


def classify(graph: Graph, images: np.ndarray) -> np.ndarray:
    return CpuEngine(graph).run(images).labels


def two_layer_network(hidden: int, classes: int, softmax: bool) -> Network:
    last = (Softmax("softmax"),) if softmax else ()
    layers = (Flatten("flatten"), Linear("fc1", hidden), Relu("relu1"), Linear("fc2", classes), *last, Argmax("argmax"))
    return Network("two", "for tests", (1, 6, 5), layers)


@EXACTLY
@given(
    scale=SCALES,
    first=st.integers(-8, 8).map(lambda exponent: 10.0**exponent),
    hidden=st.integers(1, 60),
    classes=st.integers(2, 30),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agreement_at_any_scale(scale: float, first: float, hidden: int, classes: int, bias: bool, seed: int) -> None:
    """The reference's labels agree in every arithmetic, float32's labels agree, and random labels never agree."""
    graph = random_graph(two_layer_network(hidden, classes, softmax=False), seed, bias=bias)
    images = random_images(graph.network, 100, seed)
    plain = compute_reference(graph, images)
    factors = {"fc1": first, "fc1_bias": first, "fc2": scale / first, "fc2_bias": scale}
    resized = multiplied(graph, **factors)
    reference = compute_reference(resized, images)
    assert compare_labels(classify(resized, images), reference, "reference").holds
    noise = np.random.default_rng(seed).integers(0, classes, 100).astype(np.uint8)
    for dtype in BY_DTYPE:
        assert compare_labels(reference.labels, reference, "reference", dtype).holds
        for labels in (noise, (plain.labels + 1) % classes):
            assert not compare_labels(labels.astype(np.uint8), reference, "reference", dtype).holds
            assert not compare_labels(labels.astype(np.uint8), plain, "reference", dtype).holds


@EXACTLY
@given(offset=st.floats(-1e6, 1e6), scale=SCALES, softmax=st.booleans())
def test_a_large_common_bias_excuses_only_near_ties(offset: float, scale: float, softmax: bool) -> None:
    """The bias uses up float32's bits, so close scores may swap; random labels still fail."""
    graph = random_graph(two_layer_network(20, 10, softmax), bias=True)
    scale = 1.0 if softmax else scale
    graph.parameters["fc2_bias"][:] += np.float32(offset)
    graph = multiplied(graph, fc2=scale, fc2_bias=scale)
    images = random_images(graph.network, 100)
    reference = compute_reference(graph, images)
    found = compare_labels(classify(graph, images), reference, "reference")
    assert all(difference.excused for difference in found.differences)
    assert compare_labels(reference.labels, reference, "reference").holds
    noise = np.random.default_rng(3).integers(0, 10, 100).astype(np.uint8)
    for dtype in BY_DTYPE:
        assert not compare_labels(noise, reference, "reference", dtype).holds


@pytest.mark.parametrize("bias", [True, False])
def test_lost_features_fail(bias: bool) -> None:
    """The features are so small that float16 rounds them to zero; labels computed with zeros must fail."""
    graph = multiplied(random_graph(LENET5, bias=bias), conv1=1e-6, conv1_bias=1e-6, conv2=1e-6, conv2_bias=1e-12)
    small = multiplied(graph, fc1_bias=1e-12, fc2_bias=1e-12)
    images = random_images(LENET5, 100)
    reference = compute_reference(small, images)
    lost = classify(multiplied(small, conv2=0, conv2_bias=0), images)
    found = classify(small, images)
    for dtype in BY_DTYPE:
        assert not compare_labels(lost, reference, "reference", dtype).holds
        assert compare_labels(found, reference, "reference", dtype).holds


# --- by the command line


@pytest.fixture
def shipped_weights(release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Use shipped weights of random values, and random test images with labels that these weights give."""
    data = Dataset(IMAGES[:, None], TRUTH, None, "random", "test")
    monkeypatch.setattr("app.main_job.images.load_fashion_mnist", lambda *_: data)
    capsys.readouterr()
    return release


def write_own_files(folder: Path, arrays: Parameters, **attributes: float) -> list[str]:
    """Write a weights file and sixty random unlabelled images; return the options that name them, for the CPU."""
    write_idx(folder / "images", random_images(LENET5, 60)[:, 0])
    weights = write_hdf5(folder / "odd.h5", arrays, **attributes)
    return ["--device", "cpu", "--weights", str(weights), "--data", str(folder / "images"), "--labels", "none"]


LAYERS = tuple(Tanh(layer.name) if isinstance(layer, Relu) else layer for layer in LENET5.layers)
TWIN = replace(LENET5, name="twin", layers=LAYERS)


@pytest.mark.parametrize("more", [(), ("--recheck",)])
def test_promises_hold_only_for_an_equal_network(
    more: tuple[str, ...], shipped_weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network of the same shapes with tanh is compared with neither lenet5's stored results nor its promises."""
    weights = shipped.find_shipped_weights("lenet5")
    images = IMAGES[:100, None]
    labels = [compute_reference(random_graph(network), images).labels for network in (LENET5, TWIN)]
    assert (labels[0] != labels[1]).any()
    for network in (TWIN, LENET5, replace(LENET5, name="same", summary="also")):
        monkeypatch.setitem(NETWORKS, network.name, network)
        code = main(["--device", "cpu", "--batch", "100", "--network", network.name, "--weights", str(weights), *more])
        out = capsys.readouterr().out
        promised = network is not TWIN
        assert code == 0 and ("correct as promised" in out) is promised
        stored = promised and not more
        assert f"all 100 labels equal the {'stored' if stored else 'recomputed'} float64 reference" in out


@pytest.mark.parametrize(("scale", "factor"), [(1e30, 1e10), (1e-30, 1e-10), (1 / 255, 1e38)])
def test_extreme_pixel_scales_are_refused(scale: float, factor: float, tmp_path: Path, refuses: Refuses) -> None:
    arrays = dict(random_graph(LENET5).parameters)
    arrays["conv1"] = (arrays["conv1"] / np.abs(arrays["conv1"]).max() * factor).astype(np.float32)
    command = write_own_files(tmp_path, arrays, input_scale=scale)
    if scale == 1 / 255:  # large, but within float32's range
        assert main(command) == 1
    else:
        refuses(command, "odd.h5: attribute 'input_scale' of .* weights of conv1 beyond float32")


@pytest.mark.parametrize("factor", [0.0, 1e20])
@pytest.mark.parametrize("recheck", [(), ("--recheck",)])
def test_equal_or_infinite_scores_fail(
    factor: float, recheck: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All images have equal scores, or the scores exceed float32's range. NumPy gives no warning."""
    arrays = {name: array * np.float32(factor) for name, array in random_graph(LENET5, bias=False).parameters.items()}
    assert main([*write_own_files(tmp_path, arrays), *recheck]) == 1
    out, err = capsys.readouterr()
    fault = "scores are the same for all 60 images" if not factor else "scores of 60 of 60 images are beyond float32's"
    assert f"agreement  FAILED: {fault}" in out and err == ""


def test_equal_images_have_equal_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = write_own_files(tmp_path, random_graph(LENET5).parameters)
    write_idx(tmp_path / "images", np.full((9, 28, 28), 7, np.uint8))
    assert main(command) == 0
    assert "agreement  PASSED: all 9 labels equal" in capsys.readouterr().out


@pytest.mark.parametrize(("least", "code"), [(None, 0), ("0.05", 0), ("0.9", 1)])
def test_min_accuracy(least: str | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answers are random: a warning always appears, and they pass only with a low limit."""
    graph, images = random_graph(LENET5), random_images(LENET5, 60)
    labels = (compute_reference(graph, images).labels + (np.arange(60) % 10 > 0)).astype(np.uint8) % 10
    write_idx(tmp_path / "labels", labels.astype(np.uint8))
    *command, _ = write_own_files(tmp_path, graph.parameters)  # without the last option's value "none"
    asked = [] if least is None else ["--min-accuracy", least]
    assert main([*command, str(tmp_path / "labels"), "--wide", *asked]) == code
    out = capsys.readouterr().out
    assert "Accuracy: 6 / 60 correct = 10.00%" in out and "agreement  PASSED: all 60 labels equal" in out
    assert "answers    WARNING: near chance, which is 10.0%; likely causes: fc1's rows not in the order H, W, C" in out
    assert ("answers    PASSED" in out, "answers    FAILED" in out) == (least is not None and code == 0, code == 1)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("--min-accuracy 90", "--min-accuracy: 90 is not at least 0 and at most 1"),
        ("--min-accuracy 0.5", "--min-accuracy needs labels: leave it out with --labels none"),
    ],
)
def test_wrong_min_accuracy_is_refused(options: str, wrong: str, tmp_path: Path, refuses: Refuses) -> None:
    refuses([*write_own_files(tmp_path, random_graph(LENET5).parameters), *options.split()], wrong)
