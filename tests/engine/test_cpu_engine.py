"""The engine on the CPU: the reference's labels, whatever the batch and the number of threads."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app.base import processor
from app.base.processor import _openblas, one_blas_thread, usable_cores
from app.engine.cpu import CpuEngine
from app.engine.interface import Outputs
from app.layers import Parameters, Relu
from app.network.definitions import LENET5, Network
from app.network.graph import REFERENCE_CHUNK, Graph
from tests.support.networks_for_tests import TEST_NETWORKS, random_graph, random_images


def _classify(graph: Graph, images: np.ndarray, threads: int | None = None) -> tuple[np.ndarray, CpuEngine]:
    """Labels, from an array poisoned before, and the engine that wrote them."""
    engine = CpuEngine(graph)
    if threads is not None:
        engine.threads = threads
    labels = np.full(len(images), 255, np.uint8)
    engine.run(images, Outputs(labels))
    return labels, engine


@pytest.mark.parametrize("batch", [1, 7, 31, 100])
@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_labels_are_the_references(network: Network, batch: int) -> None:
    graph, images = random_graph(network), random_images(network, batch)
    labels, _ = _classify(graph, images)
    expected = graph.reference(images).argmax(axis=1)
    np.testing.assert_array_equal(labels, expected)
    assert batch < 31 or len(np.unique(labels)) > 1, "labels that are all the same would prove nothing"


def test_float_images_are_taken_as_they_are() -> None:
    graph, images = random_graph(LENET5, bias=False), random_images(LENET5, 20)
    scaled = (images / 255).astype(np.float32)
    np.testing.assert_array_equal(_classify(graph, scaled)[0], _classify(graph, images)[0])


@pytest.mark.parametrize("images", [2, 100, 4 * REFERENCE_CHUNK])
@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_threads_work_as_were_asked_for(threads: int, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads, two chunks are under way at once: each waits for the other. With one, never."""
    graph = random_graph(LENET5)
    under_way, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(threads)
    real = Graph.forward

    def counted(*arguments: object, **options: object) -> object:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        together.wait(timeout=10)
        try:
            return real(*arguments, **options)  # type: ignore[arg-type]
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(Graph, "forward", counted)
    _classify(graph, random_images(LENET5, images), threads)
    assert most == threads


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("images", [1, 2, 8, 100, 1000, 10_000])
def test_no_thread_has_more_than_its_share(threads: int, images: int) -> None:
    """The chunks keep all threads busy, one an image at most, and are never larger than what the caches hold."""
    engine = CpuEngine(random_graph(LENET5))
    engine.threads = threads
    chunk = engine.chunk_for(images)
    assert 1 <= chunk <= REFERENCE_CHUNK
    assert chunk == REFERENCE_CHUNK or (chunk - 1) * threads < images <= chunk * threads
    assert engine.threads_for(images) == min(threads, -(-images // chunk))


def test_every_layer_is_timed_and_times_add_up() -> None:
    graph, images = random_graph(LENET5), random_images(LENET5, 40)
    labels, engine = _classify(graph, images)
    first = dict(engine.seconds)
    assert list(first) == [layer.name for layer in LENET5.layers]
    assert all(seconds > 0 for seconds in first.values())
    engine.run(images, Outputs(labels))
    assert all(engine.seconds[name] > first[name] for name in first)


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_counts_every_image_once(threads: int) -> None:
    engine = CpuEngine(random_graph(LENET5))
    engine.threads = threads
    done: list[int] = []
    count = 4 * REFERENCE_CHUNK + 5
    engine.run(random_images(LENET5, count), progress=done.append)
    assert sorted(done) == [5, *[REFERENCE_CHUNK] * 4]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_goes_wrong_in_a_chunk_is_raised(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(LENET5)
    calls: list[int] = []

    def broken(layer: Relu, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        calls.append(len(x))
        if len(x) < REFERENCE_CHUNK:
            raise ZeroDivisionError("in the last chunk")
        return np.maximum(x, 0)

    monkeypatch.setattr(Relu, "reference", broken)
    with pytest.raises(ZeroDivisionError, match="in the last chunk"):
        _classify(graph, random_images(LENET5, 2 * REFERENCE_CHUNK + 3), threads)
    assert 3 in calls


def test_after_an_error_the_chunks_that_wait_are_dropped() -> None:
    engine = CpuEngine(random_graph(LENET5))
    engine.threads = 1
    done: list[int] = []

    def stop(images: int) -> None:
        done.append(images)
        raise KeyboardInterrupt

    count = 200 * REFERENCE_CHUNK
    threads_before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        engine.run(np.zeros((count, 1, 28, 28), np.uint8), progress=stop)
    assert len(done) < 200
    assert threading.active_count() == threads_before


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() >= 1
    monkeypatch.delattr(processor.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(processor.os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.fixture
def openblas() -> Iterator[Callable[[], int]]:
    """The number of threads of OpenBLAS, which a program has left at 3."""
    libraries = _openblas()
    if not libraries:
        pytest.skip("NumPy computes with another matrix library here")
    get, set_threads = libraries[0]
    before = get()
    set_threads(3)
    yield get
    set_threads(before)


def test_openblas_has_one_thread_per_call(openblas: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, real, seen = random_graph(LENET5), Graph.forward, set()

    def forward(*arguments: Any) -> Any:
        seen.add(openblas())
        return real(*arguments)

    monkeypatch.setattr(Graph, "forward", forward)
    _classify(graph, random_images(LENET5, 9))
    assert (seen, openblas()) == ({1}, 3)


def test_the_last_of_several_blocks_gives_openblas_its_threads_back(openblas: Callable[[], int]) -> None:
    first, second = one_blas_thread(), one_blas_thread()
    with pytest.raises(KeyError), first:
        second.__enter__()
        raise KeyError
    assert openblas() == 1
    second.__exit__(None, None, None)
    assert openblas() == 3
