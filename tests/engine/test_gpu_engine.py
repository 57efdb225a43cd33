"""Test the engine on a GPU: results do not depend on chunks and streams; a repeated batch allocates nothing."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.base.errors import UserError
from app.cuda.device import describe_gpu
from app.cuda.memory import DeviceMemoryError, pinned_array, pinned_copy
from app.engine import buffers as buffers_module
from app.engine.buffers import WholeBatchBuffers, chunk_slices
from app.engine.gpu import GpuEngine
from app.main_job.result import repeat_images
from app.network.definitions import LENET5, Network
from app.network.graph import Graph, build_graph
from app.network.reference import compute_reference
from app.network.weights import load_weights
from app.planning.plan import plan
from tests.support.networks_for_tests import (
    TEST_NETWORKS,
    check_labels,
    has_long_sums,
    random_graph,
    random_images,
    score_scale,
)
from tests.support.requests import named_choices

pytestmark = pytest.mark.gpu
GRAPHS = {
    "shipped": lambda: build_graph(LENET5, load_weights()),
    "random": lambda: random_graph(LENET5, bias=False),
    "biased": lambda: random_graph(LENET5),
}
ALL_GRAPHS = pytest.mark.parametrize("weights", GRAPHS)


class WaitRecorder:
    """A CUDA event or stream whose ``synchronize`` also appends ``name`` to ``waits``."""

    def __init__(self, inner: Any, waits: list[str], name: str) -> None:
        self.inner, self._waits, self._name = inner, waits, name

    def synchronize(self) -> None:
        self._waits.append(self._name)
        self.inner.synchronize()

    def record(self, stream: Any) -> None:
        self.inner.record(getattr(stream, "inner", stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def make_engine(
    graph: Graph,
    *,
    chunk: int,
    streams: int = 3,
    input_dtype: str = "uint8",
    always_in_chunks: bool = False,
    **options: Any,
) -> Any:
    execution = plan(graph, describe_gpu()["architecture"], named_choices(**options), input_dtype=input_dtype)
    return GpuEngine(execution, chunk=chunk, streams=streams, always_in_chunks=always_in_chunks)


def classify(graph: Graph, images: np.ndarray, *, pinned: bool = True, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and logits of a new engine, written into arrays that held other values before."""
    images = pinned_copy(images) if pinned else images
    with make_engine(graph, input_dtype=images.dtype.name, **options) as running:
        outputs = running.allocate_outputs(len(images), logits=True)
        outputs.labels.fill(255)
        outputs.logits.fill(np.nan)
        running.run(images, outputs)
        return outputs.labels.copy(), outputs.logits.copy()


def check_logits(logits: np.ndarray, graph: Graph, images: np.ndarray) -> None:
    """Compare float32 logits with the float64 reference."""
    expected = graph.reference(images)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * score_scale(graph, expected))


@pytest.mark.parametrize("network", TEST_NETWORKS)
@pytest.mark.parametrize("count", [1, 7, 31])
def test_results_equal_the_float64_reference(network: Network, count: int) -> None:
    graph = random_graph(network, seed=count)
    images = random_images(network, count, seed=count)
    labels, logits = classify(graph, images, chunk=count)
    check_logits(logits, graph, images)
    np.testing.assert_array_equal(labels, logits.argmax(axis=1))
    check_labels(labels, compute_reference(graph, images))


@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_bits_do_not_depend_on_chunks_and_streams(network: Network) -> None:
    """Fusion, page-locking and named kernels change no bit either, except a named product kernel with long sums."""
    graph = random_graph(network)
    images = random_images(network, 101)
    labels, logits = classify(graph, images, chunk=101, streams=1)
    settings: list[dict[str, Any]] = [
        *({"chunk": chunk, "streams": streams} for chunk in (1, 10, 33, 100, 500) for streams in (1, 2, 4)),
        {"chunk": 17, "fuse": False},
        {"chunk": 17, "pinned": False},
        {"chunk": 50, "kernels": {"conv": "direct"}},
        # Streams copy slices of the filters to constant memory: none may overwrite another's.
        {"chunk": 3, "streams": 4, "kernels": {"conv": "constant"}},
        {"chunk": 50, "kernels": {} if has_long_sums(graph) else {"gemm": "naive"}, "fuse": False},
    ]
    for options in settings:
        other_labels, other_logits = classify(graph, images, **options)
        np.testing.assert_array_equal(other_labels, labels, err_msg=str(options))
        np.testing.assert_array_equal(other_logits.view(np.uint32), logits.view(np.uint32), err_msg=str(options))


def test_float_images_give_the_same_labels() -> None:
    graph = random_graph(LENET5)
    images = random_images(LENET5, 64)
    scaled = (images / np.float32(255)).astype(np.float32)
    labels, logits = classify(graph, images, chunk=20)
    float_labels, float_logits = classify(graph, scaled, chunk=20)
    np.testing.assert_allclose(float_logits, logits, rtol=0, atol=1e-5 * score_scale(graph, logits))
    reference = compute_reference(graph, images)
    check_labels(labels, reference)
    check_labels(float_labels, reference)


@pytest.mark.alone
@pytest.mark.parametrize("pinned", [True, False])
def test_a_repeated_batch_allocates_nothing(pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits once per stream, at the end; with pageable images also once per chunk, for its staging buffer."""
    graph = random_graph(LENET5)
    images = random_images(LENET5, 95)
    images = pinned_copy(images) if pinned else images
    with make_engine(graph, chunk=10, streams=3) as running:
        outputs = running.allocate_outputs(95)
        running.run(images, outputs)
        waits: list[str] = []

        def fail_on_allocation(*_: Any) -> None:
            raise AssertionError("allocated in the hot loop")

        monkeypatch.setattr(buffers_module, "device_array", fail_on_allocation)
        monkeypatch.setattr(buffers_module, "pinned_array", fail_on_allocation)
        # All calls that allocate; the GPU's free memory shows the driver's own allocations, if no other program runs.
        for name in ("hostAlloc", *(name for name in vars(cupy.cuda.runtime) if name.startswith("malloc"))):
            monkeypatch.setattr(cupy.cuda.runtime, name, fail_on_allocation)
        for name in ("Memory", "ManagedMemory", "PinnedMemory"):
            monkeypatch.setattr(cupy.cuda, name, fail_on_allocation)
        free_before = cupy.cuda.runtime.memGetInfo()
        for buffers in running.stream_buffers:
            buffers.copied = WaitRecorder(buffers.copied, waits, "staging")
            buffers.stream = WaitRecorder(buffers.stream, waits, "end")
        cupy.cuda.set_allocator(fail_on_allocation)
        cupy.cuda.set_pinned_memory_allocator(fail_on_allocation)
        try:
            running.submit(images, outputs)
            running.wait()
        finally:
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
            cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
        assert cupy.cuda.runtime.memGetInfo() == free_before
        # Only a chunk of pageable images waits, for its stream's staging buffer.
        assert waits.count("staging") == (0 if pinned else len(list(chunk_slices(95, 10))))
        assert waits.count("end") == 3 and waits[-3:] == ["end"] * 3
        for buffers in running.stream_buffers:
            buffers.copied, buffers.stream = buffers.copied.inner, buffers.stream.inner


@ALL_GRAPHS
@pytest.mark.parametrize("precision", ["fp32", "fp32x", "fp16"])
def test_a_repeated_batch_is_replayed_as_a_graph(precision: str, weights: str) -> None:
    """The replay gives the same bits for whatever the arrays then contain; other arrays do not use the graph."""
    graph = GRAPHS[weights]()
    first, second = (random_images(LENET5, 301, seed=seed) for seed in (1, 2))
    images, other = (pinned_array(first.shape, first.dtype) for _ in range(2))
    with make_engine(graph, chunk=50, precision=precision) as running:
        outputs, others = (running.allocate_outputs(301, logits=True) for _ in range(2))

        def run_once(source: np.ndarray, target: Any) -> tuple[np.ndarray, np.ndarray]:
            target.labels.fill(255)
            target.logits.fill(np.nan)
            running.run(source, target)
            return target.labels.copy(), target.logits.view(np.uint32).copy()

        def are_equal(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> bool:
            return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

        images[:], other[:] = first, second
        expected = run_once(images, outputs)
        assert not running.replays_graph_for(images, outputs)
        assert are_equal(run_once(images, outputs), expected) and running.replays_graph_for(images, outputs)
        whole = any(
            WholeBatchBuffers.can_replay_arrays(running.plan, [images], direct=direct) for direct in (True, False)
        )
        assert (running.direct is not None) == whole
        assert are_equal(run_once(images, outputs), expected)
        assert are_equal(run_once(images, others), expected)
        of_other = run_once(other, others)
        assert not are_equal(of_other, expected)
        images[:] = second
        for _ in range(3):
            assert are_equal(run_once(images, outputs), of_other)
        running.run(images[:20], outputs)
        assert np.array_equal(outputs.labels[:20], of_other[0][:20])


@pytest.mark.parametrize("batch", [31, 62, 63, 200])
def test_repeated_images_are_streamed(batch: int) -> None:
    graph = random_graph(LENET5)
    images = random_images(LENET5, 31)
    expected, _ = classify(graph, images, chunk=31)
    with make_engine(graph, chunk=4) as running:
        held = running.device_bytes
        pair = running.allocate_outputs(31), running.allocate_outputs(31)
        passes = [labels.copy() for labels in running.stream(repeat_images(images, batch), pair)]
        assert running.device_bytes == held
    assert sum(map(len, passes)) == batch
    for labels in passes:
        np.testing.assert_array_equal(labels, expected[: len(labels)])


def test_out_of_memory_shrinks_the_chunk_and_keeps_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(LENET5)
    images = random_images(LENET5, 64)
    labels, logits = classify(graph, images, chunk=64)
    real = buffers_module.device_array

    def device_array_of_small_gpu(elements: int, dtype: str) -> Any:
        if elements * np.dtype(dtype).itemsize > 600_000:
            raise DeviceMemoryError
        return real(elements, dtype)

    monkeypatch.setattr(buffers_module, "device_array", device_array_of_small_gpu)
    with make_engine(graph, chunk=64) as running:
        assert running.shrunk and running.chunk == 32
    shrunk_labels, shrunk_logits = classify(graph, images, chunk=64)
    np.testing.assert_array_equal(shrunk_labels, labels)
    np.testing.assert_array_equal(shrunk_logits.view(np.uint32), logits.view(np.uint32))


@pytest.mark.alone
def test_a_chunk_beyond_the_gpus_memory_is_halved() -> None:
    """The chunk size is halved until the buffers fit."""
    graph = random_graph(LENET5)
    _, total = cupy.cuda.runtime.memGetInfo()
    chunk = 1 << (total // 20_000).bit_length()
    images = random_images(LENET5, 5)
    with make_engine(graph, chunk=chunk, streams=1) as running:
        assert running.shrunk and running.chunk < chunk
        outputs = running.allocate_outputs(5)
        running.run(images, outputs)
    np.testing.assert_array_equal(outputs.labels, graph.reference(images).argmax(axis=1))


def test_too_little_memory_for_one_image_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(LENET5)
    running = make_engine(graph, chunk=1)
    running.close()

    def raise_out_of_memory(*_: Any, **__: Any) -> None:
        raise DeviceMemoryError

    monkeypatch.setattr("app.engine.gpu.StreamBuffers", raise_out_of_memory)
    with pytest.raises(UserError, match="not even one image"):
        make_engine(graph, chunk=16)


def test_wrong_images_are_refused() -> None:
    graph = random_graph(LENET5)
    with make_engine(graph, chunk=4) as running:
        outputs = running.allocate_outputs(4)
        for bad in (
            random_images(LENET5, 4).astype(np.float32),
            random_images(LENET5, 8)[::2],
            np.zeros((4, 1, 28, 27), np.uint8),
            random_images(LENET5, 5),
        ):
            with pytest.raises(ValueError, match="images"):
                running.run(bad, outputs)
