"""Test the classifier on a GPU: the main job's bits for host and GPU arrays; streams, memory and threads."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy
from cupy.cuda import runtime

from app.base.errors import UserError
from app.base.precision import PRECISIONS
from app.cuda.device import describe_gpu
from app.cuda.memory import pinned_copy
from app.engine.card_runner import CardRunner
from app.engine.classifier import Classifier
from app.engine.classifier.arguments import BadArgumentError
from app.engine.gpu import GpuEngine
from app.engine.request import chunk_size
from app.network.definitions import LENET5, MINIDNN86, NETWORKS
from app.planning import tuning
from app.planning.choices import load_graph
from app.planning.plan import plan
from app.planning.request import NetworkRequest
from docs.measure.call_overhead import measure_overhead
from tests.engine.classifier import soak
from tests.support.networks_for_tests import random_images

pytestmark = pytest.mark.gpu
BATCHES = (1, 2, 3, 7, 8, 9, 100, 1023, 1024, 1025, 2000, 10_000)


def main_job_results(network: str, precision: str, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores as the main job computes them: by a CUDA graph, because the batch is repeated."""
    graph, _, chosen = load_graph(NetworkRequest(network=network, precision=precision))
    card = describe_gpu()
    chosen = replace(chosen, tuning=tuning.load(card["name"]))
    execution = plan(graph, card["architecture"], chosen, input_dtype=images.dtype.name)
    pinned = pinned_copy(images)
    with GpuEngine(execution, chunk=chunk_size(None, len(images))) as engine:
        outputs = engine.allocate_outputs(len(images), logits=True)
        for _ in range(3):
            engine.run(pinned, outputs)
        assert outputs.logits is not None
        return outputs.labels.copy(), outputs.logits.copy()


@pytest.fixture
def lenet5() -> Iterator[Classifier]:
    with Classifier(device="cuda") as classifier:
        yield classifier


@pytest.mark.parametrize("precision", ["auto", *PRECISIONS])
@pytest.mark.parametrize("network", NETWORKS)
def test_bits_equal_the_main_jobs(network: str, precision: str) -> None:
    images = random_images(NETWORKS[network], max(BATCHES))
    with Classifier(network, device="cuda", precision=precision) as classifier:
        for count in BATCHES:
            try:
                labels, scores = main_job_results(network, precision, images[:count])
            except UserError as error:  # some precisions do not serve every network
                assert network != "lenet5"
                with pytest.raises(UserError, match=re.escape(str(error))):
                    classifier(images[:count])
                continue
            for given in (images[:count], pinned_copy(images[:count]), cupy_of(images[:count])):
                np.testing.assert_array_equal(classifier(given), labels)
                np.testing.assert_array_equal(classifier._last_scores(), scores)


def layouts(images: np.ndarray) -> Iterator[Any]:
    """Yield the images in ordinary, page-locked, misaligned and strided host arrays and each library's GPU arrays."""
    yield images
    yield images[:, 0].copy()
    yield pinned_copy(images)
    flat = pinned_copy(np.zeros(images.size + 1, np.uint8))
    flat[1:] = images.ravel()
    yield flat[1:].reshape(images.shape)
    wide = np.zeros((len(images), 1, 28, 40), np.uint8)
    wide[..., 3:31] = images
    yield wide[..., 3:31]
    for of in (cupy_of, torch_of, jax_of, interface_of):
        with suppress(pytest.skip.Exception):
            yield of(images)


SIZES = (1, 2, 3, 5, 7, 8, 9, 12, 13, 15, 16, 31, 64, 65, 71, 255, 501, 960, 961, 1024, 1025, 2000, 2999, 10_000)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("network", ["lenet5", "mlp"])
def test_no_size_or_layout_changes_a_bit(network: str, precision: str) -> None:
    """Small batches replay a graph of at least their size. Another thread waits for the whole device all the time."""
    images = random_images(NETWORKS[network], max(SIZES))
    with Classifier(network, device="cuda", precision=precision) as classifier, ThreadPoolExecutor(1) as pool:
        try:
            labels, scores = classifier(images), classifier._last_scores()
        except UserError:
            pytest.skip(f"{network} has no {precision}")
        done: list[bool] = []

        def wait_for_the_device() -> None:
            while not done:
                cupy.cuda.Device().synchronize()

        waiting = pool.submit(wait_for_the_device)
        try:
            for count in np.random.default_rng(1).permutation(SIZES):
                start = int(np.random.default_rng(count).integers(max(SIZES) - count + 1))
                part = slice(start, start + int(count))
                for given in layouts(images[part]):
                    np.testing.assert_array_equal(classifier(given), labels[part])
                    np.testing.assert_array_equal(classifier._last_scores(), scores[part])
        finally:
            done.append(True)
        waiting.result()


@pytest.mark.parametrize("precision", ["fp32x", "fp16"])
def test_floats_give_the_main_jobs_bits(precision: str) -> None:
    images = np.random.default_rng(1).random((33, 1, 28, 28), np.float32)
    labels, scores = main_job_results("lenet5", precision, images)
    with Classifier(device="cuda", precision=precision) as classifier:
        for given in (images, images.astype(np.float64), cupy_of(images), cupy_of(images.astype(np.float64))):
            np.testing.assert_array_equal(classifier(given), labels)
            np.testing.assert_array_equal(classifier._last_scores(), scores)


def cupy_of(images: np.ndarray) -> cupy.ndarray:
    array = cupy.empty(images.shape, images.dtype)
    array.set(images)
    return array


def torch_of(images: np.ndarray) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    return torch.from_numpy(images).cuda()


def jax_of(images: np.ndarray) -> Any:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    return jax.numpy.asarray(images)


def interface_of(images: np.ndarray) -> Any:
    """Return an array that has only ``__cuda_array_interface__`` and is ready on a separate stream."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy_of(images)
    interface = {**array.__cuda_array_interface__, "stream": stream.ptr}
    return SimpleNamespace(__cuda_array_interface__=interface, owner=(array, stream))


@pytest.mark.parametrize("of", [cupy_of, torch_of, jax_of, interface_of])
def test_arrays_of_every_library_are_read_in_place(
    of: Callable[[np.ndarray], Any], lenet5: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random_images(LENET5, 40)
    labels, logits = lenet5(images), lenet5.logits
    probabilities = lenet5.probabilities
    addresses: list[int] = []
    real = CardRunner.enqueue

    def enqueue(self: CardRunner, stream: int, count: int, given: tuple[int, int, int]) -> None:
        addresses.append(given[0])
        real(self, stream, count, given)

    monkeypatch.setattr(CardRunner, "enqueue", enqueue)
    for shape in ((40, 28, 28), (40, 1, 28, 28)):
        array = of(images.reshape(shape))
        view = array if hasattr(array, "__cuda_array_interface__") else cupy.from_dlpack(array)
        for _ in range(2):
            found = lenet5(array, on_card=True)
            assert isinstance(found, cupy.ndarray) and addresses[-1] == view.__cuda_array_interface__["data"][0]
            np.testing.assert_array_equal(found.get(), labels)
            np.testing.assert_array_equal(cupy.asnumpy(lenet5.logits), logits)
            np.testing.assert_allclose(cupy.asnumpy(lenet5.probabilities), probabilities, rtol=1e-5)
        np.testing.assert_array_equal(lenet5(array), labels)
        assert isinstance(lenet5.logits, np.ndarray)


def test_other_layouts_on_the_card(lenet5: Classifier) -> None:
    images = random_images(LENET5, 40)
    labels = lenet5(images)
    array = cupy_of(images[:, 0])
    wide = cupy.zeros((40, 28, 40), np.uint8)
    wide[:, :, 3:31] = array
    flat = cupy.empty(array.size + 1, np.uint8)
    flat[1:] = array.ravel()
    np.copyto(held := lenet5.empty(40), images[:, 0])
    for same in (wide[:, :, 3:31], cupy.asfortranarray(array), flat[1:].reshape(40, 28, 28), array[::-1][::-1], held):
        np.testing.assert_array_equal(lenet5(same), labels)
    one = lenet5(array[7], on_card=True)
    assert one.shape == () and int(one) == labels[7] and lenet5.logits.shape == (10,)
    assert lenet5(array[:0]).shape == (0,) and lenet5(array[:0], on_card=True).shape == (0,)
    np.testing.assert_array_equal(lenet5(images, on_card=True).get(), labels)
    for wrong, message in (
        (array.astype(np.int64), "the images are int64"),
        (array[:, :27], r"the shape \(40, 27, 28\)"),
    ):
        with pytest.raises(BadArgumentError, match=message):
            lenet5(wrong)
    with Classifier(MINIDNN86.name, device="cuda") as enlarging, pytest.raises(BadArgumentError, match="give uint8"):
        enlarging(array.astype(np.float32) / 255)


def test_calls_wait_for_earlier_work_on_their_stream(lenet5: Classifier) -> None:
    """Images are written late, on two streams alternately; each call must read what was written before it."""
    batches = [random_images(LENET5, 500, seed=seed) for seed in range(6)]
    expected = [lenet5(images) for images in batches]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    busy = cupy.ones((2048, 2048), np.float32)
    cupy.cuda.get_current_stream().synchronize()
    target = [cupy.zeros((500, 28, 28), np.uint8) for _ in streams]
    sources = [cupy_of(images[:, 0]) for images in batches]
    found = []
    for turn, source in enumerate(sources):
        stream, images = streams[turn % 2], target[turn % 2]
        with stream:
            for _ in range(20):
                busy * 2  # keeps the stream busy until after the call below
            images[...] = source
        found.append(lenet5(images, on_card=True, stream=stream.ptr if turn % 3 else stream))
    for stream in streams:
        stream.synchronize()
    for labels, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(labels.get(), wanted)


def test_a_new_thread_may_call(lenet5: Classifier) -> None:
    images = random_images(LENET5, 10)
    array, labels = cupy_of(images), lenet5(images)
    lenet5(array, on_card=True)
    for given in (array, images):
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lenet5, given, on_card=given is array).result()
        np.testing.assert_array_equal(found.get() if given is array else found, labels)


@pytest.mark.alone
@pytest.mark.parametrize("where", ["host", "card"])
def test_repeated_batch_sizes_allocate_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(LENET5, 5000)
    given = images if where == "host" else cupy_of(images)
    with Classifier(device="cuda") as classifier:
        for count in (sizes := (1, 4999, 64, 5000, 2, 2, 2, 333)):
            classifier(given[:count])
        monkeypatch.setattr(cupy.cuda, "Memory", None)  # app.cuda.memory allocates by these
        monkeypatch.setattr(cupy.cuda, "PinnedMemory", None)
        free = runtime.memGetInfo()[0]  # the pool that results come from must not grow either
        for count in sizes:
            assert len(classifier(given[:count])) == count
        assert runtime.memGetInfo()[0] == free
        monkeypatch.undo()


@pytest.mark.alone
def test_closing_frees_the_memory() -> None:
    images = random_images(LENET5, 2000)
    on_card = cupy_of(images)

    def use_classifier() -> None:
        with Classifier(device="cuda") as classifier:
            classifier(images)
            classifier(on_card)
            classifier(classifier.empty(2000))

    use_classifier()
    cupy.get_default_memory_pool().free_all_blocks()
    free = runtime.memGetInfo()[0]
    for _ in range(3):
        use_classifier()
    cupy.get_default_memory_pool().free_all_blocks()
    assert runtime.memGetInfo()[0] >= free


@pytest.mark.alone
def test_threads_share_classifiers_and_open_others() -> None:
    """``make soak`` runs this for ten minutes, with every network and precision."""
    found = soak.soak(6, device="cuda")
    assert found.calls > 50 and found.differences == [] and found.counts["waits for the whole device"]
    assert max(found.growth) <= soak.MOST_GROWTH


def test_the_overhead_is_measured() -> None:
    """The values depend on the load of the machine; ``python -m docs.measure.call_overhead`` prints them."""
    launches, call = measure_overhead(100, rounds=3, calls=20)
    assert 0 < launches < 1e4 and 0 < call < 1e4
