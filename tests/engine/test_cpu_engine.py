"""Test the CPU engines of NumPy and ONNX Runtime: the reference's labels for any batch and number of threads."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base import processor
from app.base.errors import UserError
from app.base.processor import _openblas_thread_functions, core_count, one_blas_thread
from app.cli import main
from app.engine import onnx_runtime
from app.engine.cpu import THREAD_FLOPS, CpuEngine
from app.engine.interface import CPU_ENGINE, Outputs
from app.engine.onnx_runtime import OnnxEngine
from app.engine.opening import cpu_engine_class
from app.layers import Parameters, Relu
from app.network.definitions import LENET5, Network
from app.network.graph import REFERENCE_CHUNK, Graph
from app.network.reference import compute_reference
from app.network.verdicts import compare_labels
from app.terminal.text import WIDTH
from tests.support.networks_for_tests import TEST_NETWORKS, random_graph, random_images
from tests.support.schemas import mistakes


def classify(engine: CpuEngine, images: np.ndarray, threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores, written into arrays that held other values before."""
    if threads is not None:
        engine.threads = threads
    labels = np.full(len(images), 255, np.uint8)
    scores = np.full((len(images), engine.graph.class_count), np.nan, np.float32)
    engine.run(images, Outputs(labels, scores))
    return labels, scores


@pytest.mark.parametrize("network", TEST_NETWORKS)
def test_labels_equal_the_references(network: Network) -> None:
    """ONNX Runtime's labels may differ from the reference's in near-ties, as fp32 labels may."""
    graph, images = random_graph(network), random_images(network, 40)
    expected, reference = graph.reference(images), compute_reference(graph, images)
    numpy, onnx = CpuEngine(graph), OnnxEngine(graph)
    for batch in (1, 7, 40):
        labels, scores = classify(numpy, images[:batch])
        np.testing.assert_array_equal(labels, expected[:batch].argmax(axis=1))
        theirs, their_scores = classify(onnx, images[:batch])
        agreement = compare_labels(theirs, reference, "float64", "float32")
        assert agreement.holds and agreement.compared == batch, agreement.verdict
        np.testing.assert_allclose(their_scores, scores, rtol=1e-3, atol=1e-4 * float(np.abs(expected).max()))
    assert len(np.unique(labels)) > 1, "labels that are all the same would prove nothing"


def test_float_images_give_the_labels_of_bytes() -> None:
    engine, images = CpuEngine(random_graph(LENET5, bias=False)), random_images(LENET5, 20)
    scaled = (images / 255).astype(np.float32)
    np.testing.assert_array_equal(classify(engine, scaled)[0], classify(engine, images)[0])


@pytest.mark.parametrize(
    ("images", "threads", "expected"),
    [(1, 2, 1), (8, 2, 1), (100, 1, 1), (100, 2, 2), (4 * REFERENCE_CHUNK, 1, 1), (4 * REFERENCE_CHUNK, 2, 2)],
)
def test_large_batches_use_threads(images: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``expected`` chunks run at the same time and wait for each other; a single one runs in the caller's thread."""
    graph = random_graph(LENET5)
    under_way, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(expected)
    workers = set[threading.Thread]()
    real = Graph.forward

    def wait_for_other_chunks(*arguments: object, **options: object) -> object:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
            workers.add(threading.current_thread())
        together.wait(timeout=10)
        try:
            return real(*arguments, **options)  # type: ignore[arg-type]
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(Graph, "forward", wait_for_other_chunks)
    classify(CpuEngine(graph), random_images(LENET5, images), threads)
    assert most == expected
    assert (workers == {threading.current_thread()}) == (expected == 1)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_chunks_keep_the_threads_busy(threads: int) -> None:
    """No chunk exceeds REFERENCE_CHUNK, and a thread starts only for at least THREAD_FLOPS."""
    engine = CpuEngine(random_graph(LENET5))
    engine.threads = threads
    flops = sum(part.flops for part in engine.timed_parts)
    for images in (1, 2, 8, 100, 1000, 10_000):
        chunk, used = engine.images_per_chunk(images), engine.thread_count(images)
        assert 1 <= chunk <= REFERENCE_CHUNK
        assert used == min(threads, -(-images // chunk))
        assert chunk == REFERENCE_CHUNK or (chunk - 1) * used < images <= chunk * used
        assert used == 1 or chunk * flops >= THREAD_FLOPS
        assert used == threads or images * flops < 2 * threads * THREAD_FLOPS


def test_every_layer_is_timed_and_times_add_up() -> None:
    engine, images = CpuEngine(random_graph(LENET5)), random_images(LENET5, 40)
    classify(engine, images)
    first = dict(engine.seconds)
    assert list(first) == [layer.name for layer in LENET5.layers]
    assert all(seconds > 0 for seconds in first.values())
    classify(engine, images)
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
def test_an_exception_in_a_chunk_is_raised(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = CpuEngine(random_graph(LENET5)), list[int]()

    def fail_in_last_chunk(layer: Relu, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        calls.append(len(x))
        if len(x) < REFERENCE_CHUNK:
            raise ZeroDivisionError("in the last chunk")
        return np.maximum(x, 0)

    monkeypatch.setattr(Relu, "reference", fail_in_last_chunk)
    with pytest.raises(ZeroDivisionError, match="in the last chunk"):
        classify(engine, random_images(LENET5, 2 * REFERENCE_CHUNK + 3), threads)
    assert 3 in calls


def test_an_interrupt_cancels_the_waiting_chunks() -> None:
    engine = CpuEngine(random_graph(LENET5))
    engine.threads = 1
    done: list[int] = []

    def raise_interrupt(images: int) -> None:
        done.append(images)
        raise KeyboardInterrupt

    count = 200 * REFERENCE_CHUNK
    threads_before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        engine.run(np.zeros((count, 1, 28, 28), np.uint8), progress=raise_interrupt)
    assert len(done) < 200
    assert threading.active_count() == threads_before


def test_core_count_is_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert core_count() >= 1
    monkeypatch.delattr(processor.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(processor.os, "cpu_count", lambda: None)
    assert core_count() == 1


@pytest.fixture
def blas_threads() -> Iterator[Callable[[], int]]:
    """Set OpenBLAS to 3 threads, as a program might; return the function that reads the number."""
    libraries = _openblas_thread_functions()
    if not libraries:
        pytest.skip("NumPy computes with another matrix library here")
    get, set_threads = libraries[0]
    before = get()
    set_threads(3)
    yield get
    set_threads(before)


def test_openblas_has_one_thread_per_call(blas_threads: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, real, seen = random_graph(LENET5), Graph.forward, set()

    def forward(*arguments: Any) -> Any:
        seen.add(blas_threads())
        return real(*arguments)

    monkeypatch.setattr(Graph, "forward", forward)
    classify(CpuEngine(graph), random_images(LENET5, 9))
    assert (seen, blas_threads()) == ({1}, 3)


def test_the_last_block_restores_the_threads_of_openblas(blas_threads: Callable[[], int]) -> None:
    first, second = one_blas_thread(), one_blas_thread()
    with pytest.raises(KeyError), first:
        second.__enter__()
        raise KeyError
    assert blas_threads() == 1
    second.__exit__(None, None, None)
    assert blas_threads() == 3


# --- the engine of ONNX Runtime, and the choice between the engines


def test_onnx_scores_do_not_depend_on_threads_or_pixel_type() -> None:
    images, engine = random_images(LENET5, 300), OnnxEngine(random_graph(LENET5))
    labels, scores = classify(engine, images, threads=1)
    for same in zip(classify(engine, images, threads=3), (labels, scores), strict=True):
        np.testing.assert_array_equal(*same)
    as_floats = classify(engine, images / 255)
    np.testing.assert_array_equal(as_floats[0], labels)
    np.testing.assert_allclose(as_floats[1], scores, rtol=1e-4, atol=1e-4)


def test_the_environment_variable_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_ENGINE, "numpy")
    assert cpu_engine_class() is CpuEngine
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    assert cpu_engine_class() is OnnxEngine
    monkeypatch.delenv(CPU_ENGINE)
    assert cpu_engine_class() is OnnxEngine
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert cpu_engine_class() is CpuEngine
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    with pytest.raises(UserError, match=r"needs ONNX Runtime .*pip install .*'onnxruntime>="):
        cpu_engine_class()
    monkeypatch.setenv(CPU_ENGINE, "openvino")
    with pytest.raises(UserError, match="numpy or onnxruntime"):
        cpu_engine_class()


def test_a_model_that_onnx_runtime_refuses_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runtime, "onnx_model", lambda *_: SimpleNamespace(SerializeToString=lambda: b"no model"))
    with pytest.raises(
        UserError, match=r"does not run network lenet5 .*: compute by NumPy, with LENET_CPU_ENGINE=numpy"
    ):
        OnnxEngine(random_graph(LENET5))


def test_the_report_names_onnx_runtime(
    first_hundred: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CPU_ENGINE, "onnxruntime")
    assert main(["--device", "cpu", "--json", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= WIDTH
    report = json.loads((tmp_path / "report.json").read_text())
    assert not mistakes(report)
    assert report["device"]["onnxruntime"] in out and report["one_off_ms"]["engine"] > 0
    (layer,) = report["layers"]
    assert (layer["name"], layer["kernel"]) == (onnx_runtime.WHOLE, "ONNX Runtime")
    assert report["passed"] and report["op_times"] == [] and layer["gflop"] > 0.7
