"""Test the resident kernel on a GPU: the ordinary kernels' bits, its end and restart, other work on the GPU."""

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.base.errors import UserError
from app.cuda.device import compute_capability, describe_gpu
from app.engine.classifier import Classifier
from app.engine.gpu import GpuEngine
from app.engine.resident import IDLE, LIFE, MOST, ResidentKernel
from app.network.definitions import LENET5
from app.network.graph import Graph
from app.network.weights import save_weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import random_graph, random_images, rounded
from tests.support.sparsity import with_sparse_conv2

pytestmark = pytest.mark.gpu
PRECISIONS = ("fp16", "fp32x")


@pytest.fixture(autouse=True)
def hopper() -> None:
    if compute_capability() != (9, 0) or platform.machine() != "x86_64":
        pytest.skip("only Hopper GPUs beside x86-64 have a resident kernel")


@pytest.fixture(params=PRECISIONS)
def resident(request: pytest.FixtureRequest) -> Iterator[Classifier]:
    with Classifier(device="cuda", precision=request.param, resident=True) as classifier:
        yield classifier


def launch_count(classifier: Classifier) -> int:
    assert classifier._resident is not None
    return classifier._resident._launch.value


def scale_randomly(graph: Graph, seed: int) -> Graph:
    """Return the graph with each array multiplied by a random power of two."""
    rng = np.random.default_rng(seed)
    arrays = {name: array * np.float32(2.0 ** rng.integers(-6, 7)) for name, array in graph.parameters.items()}
    return replace(graph, parameters=arrays)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(6))
def test_bits_equal_the_engines(precision: str, seed: int) -> None:
    """Cases are weights of many scales, with and without product biases, zero weights, and a sparse conv2."""
    graph = scale_randomly(random_graph(LENET5, seed=seed, bias=False), seed)
    if seed % 2:
        rng, shapes = np.random.default_rng(seed), {"fc1_bias": 128, "fc2_bias": 10}
        biases = {name: rng.standard_normal(size).astype(np.float32) for name, size in shapes.items()}
        graph = replace(graph, parameters={**graph.parameters, **biases})
    if seed == 4:
        graph = replace(graph, parameters={name: array * 0 for name, array in graph.parameters.items()})
    if seed == 5:
        graph = with_sparse_conv2(graph)
    execution = plan(rounded(graph), describe_gpu()["architecture"], Choices(precision=precision, sparse=False))
    images = random_images(LENET5, 400, seed=seed)
    images[:8] = np.arange(0, 256, 32, dtype=np.uint8)[:, None, None, None]
    with GpuEngine(execution) as engine:
        outputs = engine.allocate_outputs(len(images), logits=True)
        engine.run(images, outputs)
        assert outputs.logits is not None
        kernel, first = ResidentKernel(engine.loaded), 0
        while first < len(images):
            count = min(1 + first % MOST, len(images) - first)
            answer = kernel.run(images[first : first + count])
            assert answer is not None
            np.testing.assert_array_equal(answer[0], outputs.labels[first : first + count])
            expected = outputs.logits[first : first + count].view(np.uint32)
            np.testing.assert_array_equal(answer[1]().view(np.uint32), expected)
            first += count
        kernel.close()


def test_every_form_of_images_gives_the_engines_results(resident: Classifier) -> None:
    images = random_images(LENET5, 2000)
    with Classifier(device="cuda", precision=resident.precision, sparse=False) as other:
        for given in (images[0, 0], images[:1], images[:8, 0], images[:9], images[:5] / 255, images, images[3, 0]):
            np.testing.assert_array_equal(resident(given), other(given))
            assert resident(given).shape == other(given).shape
            np.testing.assert_array_equal(resident.logits, other.logits)
            np.testing.assert_array_equal(resident.probabilities, other.probabilities)
        on_card = cupy.asarray(images[:7])
        np.testing.assert_array_equal(resident(on_card), other(on_card))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sparse_weights_have_the_bits_of_dense_kernels(precision: str, tmp_path: Path) -> None:
    graph, images = with_sparse_conv2(rounded(random_graph(LENET5, bias=False))), random_images(LENET5, 500)
    save_weights(tmp_path / "sparse.h5", graph.parameters, network=LENET5, input_scale=graph.input_scale)
    options: dict[str, Any] = {"device": "cuda", "precision": precision}
    with (
        Classifier(tmp_path / "sparse.h5", resident=True, **options) as resident,
        Classifier(tmp_path / "sparse.h5", sparse=False, **options) as dense,
        Classifier(tmp_path / "sparse.h5", **options) as sparse,
    ):
        for given in (images[:1], images[:8], images):
            np.testing.assert_array_equal(resident(given), dense(given))
            np.testing.assert_array_equal(resident.logits, dense.logits)
            sparse(given)
            np.testing.assert_allclose(sparse.logits, dense.logits, rtol=0, atol=2e-2 * np.abs(dense.logits).max())


def test_the_kernel_ends_when_idle_and_starts_again(resident: Classifier) -> None:
    image = random_images(LENET5, 1)[0, 0]
    label = resident(image)
    before = launch_count(resident)
    until = monotonic() + IDLE / 4
    while monotonic() < until:
        assert resident(image) == label
    assert launch_count(resident) <= before + 1  # LIFE may have passed
    sleep(2 * IDLE)
    started = monotonic()
    cupy.cuda.Device().synchronize()
    assert monotonic() - started < LIFE / 2
    before = launch_count(resident)
    assert resident(image) == label and launch_count(resident) == before + 1


def test_a_wait_for_the_device_ends_with_the_kernels_life(resident: Classifier) -> None:
    image = random_images(LENET5, 1)[0, 0]
    label, longest = resident(image), 0.0
    with ThreadPoolExecutor(1) as pool:

        def wait() -> float:
            started = monotonic()
            cupy.cuda.Device().synchronize()
            return monotonic() - started

        for _ in range(3):
            waiting = pool.submit(wait)
            while not waiting.done():
                assert resident(image) == label
            longest = max(longest, waiting.result())
    assert longest < 3 * LIFE


def test_threads_share_a_resident_classifier(resident: Classifier) -> None:
    images = random_images(LENET5, 64)[:, 0]
    labels = [int(resident(image)) for image in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            assert [int(label) for label in pool.map(resident, images)] == labels


def test_close_ends_the_kernel_and_keeps_results(resident: Classifier) -> None:
    image = random_images(LENET5, 1)[0, 0]
    resident(image)
    resident.close()
    started = monotonic()
    cupy.cuda.Device().synchronize()
    assert monotonic() - started < IDLE / 2
    assert resident.logits.shape == (10,)
    with pytest.raises(UserError, match="closed"):
        resident(image)


def test_unsupported_networks_and_the_cpu_are_refused() -> None:
    with pytest.raises(ValueError, match="resident=True serves lenet5"):
        Classifier("mlp", device="cuda", precision="fp16", resident=True)
    with pytest.raises(ValueError, match="resident=True needs a GPU"):
        Classifier(device="cpu", resident=True)
