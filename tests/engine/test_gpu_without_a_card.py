"""Test the GPU engine without a GPU: chunks, captures, repeated arrays, and calls on a simulated GPU."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy
from cupy.cuda import runtime

from app.cuda import events
from app.cuda.graphs import BatchGraph, KernelGraph
from app.cuda.memory import DeviceMemoryError, pinned_copy
from app.engine import gpu
from app.engine.buffers import chunk_slices, equal_chunk_slices
from app.engine.gpu import GpuEngine
from app.engine.interface import Outputs
from app.engine.request import STREAMS, chunk_size, default_chunk_size
from app.engine.small_batches import graph_batch_size
from app.kernels import cublas
from app.network.definitions import LENET5
from app.network.graph import build_graph
from app.network.weights import load_weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.fake_card import ARCHITECTURE, FakeCard, fake_card
from tests.support.networks_for_tests import random_images


def chunk_lengths(count: int, chunk: int) -> list[int]:
    return [part.stop - part.start for part in chunk_slices(count, chunk)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10, 64, 1000])
def test_chunks_cover_the_batch_in_order(chunk: int) -> None:
    for count in (1, 2, 3, 9, 10, 11, 15, 64, 65, 127, 999, 1001):
        parts = list(chunk_slices(count, chunk))
        assert parts[0].start == 0 and parts[-1].stop == count
        assert all(before.stop == after.start for before, after in pairwise(parts))
        assert all(0 < length <= chunk for length in chunk_lengths(count, chunk))


def test_the_first_and_last_chunks_are_half_as_long() -> None:
    assert chunk_lengths(10, 10) == [10]
    assert chunk_lengths(10_000, 2000) == [1000, 2000, 2000, 2000, 2000, 1000]
    assert chunk_lengths(10_001, 2000) == [1000, 1600, 1600, 1600, 1600, 1601, 1000]
    assert chunk_lengths(11, 10) == [5, 1, 5]
    assert chunk_lengths(3, 1) == [1, 1, 1]


def test_equal_chunks() -> None:
    assert [part.stop - part.start for part in equal_chunk_slices(0, 10_000, 4096)] == [3333, 3333, 3334]
    assert list(equal_chunk_slices(5, 6, 4)) == [slice(5, 6)]
    assert list(equal_chunk_slices(5, 5, 4)) == []


def test_default_chunk_size() -> None:
    assert default_chunk_size(10_000) == 2000
    assert [default_chunk_size(batch) for batch in (0, 1, 100, 256, 257, 1000)] == [1, 1, 100, 256, 52, 200]
    assert default_chunk_size(10**9) == 4096
    assert chunk_size(None, 10_000) == 2000 and chunk_size(None, 10_000, streamed=True) == 3334
    assert chunk_size(700, 10_000) == chunk_size(700, 10_000, streamed=True) == 700
    assert chunk_size(700, 60) == chunk_size(None, 60, streamed=True) == 60


APP = Path(__file__).parents[2] / "app"
# Calls that wait for the whole device, or that use the null stream, as CuPy's conversions do by default.
DEVICE_WIDE = re.compile(
    r"\bdeviceSynchronize\b|\bDevice\([^)]*\)\.synchronize\b|\bStream\.null\b|\.copy_from_host\(|\bruntime\.memcpy\("
    r"|\bcupy\.(?:asarray|array|asnumpy|zeros|ones|full)\("
)


def test_nothing_that_engines_run_waits_for_the_device() -> None:
    paths = [path for path in APP.rglob("*.py") if not {"lab", "ladder"} & {*path.relative_to(APP).parts}]
    assert APP / "engine" / "gpu.py" in paths
    assert not [path for path in paths if DEVICE_WIDE.search(path.read_text(encoding="utf-8"))]


class RecordingStream:
    """A stream that records its capture mode, and whether another thread could acquire DEVICE_WIDE meanwhile."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.let_in: list[bool] = []

    def begin_capture(self, mode: int | None = None) -> None:
        self.mode = mode

    def end_capture(self) -> Any:
        self._try_lock_in_thread()
        return self

    def upload(self, _: object) -> None:
        self._try_lock_in_thread()

    def _try_lock_in_thread(self) -> None:
        def enter() -> None:
            entered = cublas.DEVICE_WIDE.acquire(blocking=False)
            if entered:
                cublas.DEVICE_WIDE.release()
            self.let_in.append(entered)

        other = Thread(target=enter)
        other.start()
        other.join()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_no_thread_waits_for_the_device_during_a_capture(error: type[BaseException] | None) -> None:
    graph, stream = BatchGraph(), RecordingStream()
    graph._stream = stream

    def enqueue(_: object) -> None:
        if error is not None:
            raise error

    if error is None:
        graph._capture_graph(enqueue)
        assert stream.let_in == [False, True]
    else:
        with pytest.raises(error):
            graph._capture_graph(enqueue)
        assert stream.let_in == [False]
    assert stream.mode == runtime.streamCaptureModeRelaxed
    stream._try_lock_in_thread()
    assert stream.let_in[-1]


def test_cublas_handles_hold_the_device_wide_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating and destroying a handle waits for the device."""
    from cupy_backends.cuda import libs

    held: list[bool] = []

    def record_lock(*_: object) -> int:
        held.append(cublas.DEVICE_WIDE._is_owned())  # type: ignore[attr-defined]
        return 1

    monkeypatch.setitem(vars(libs), "cublas", SimpleNamespace(create=record_lock, destroy=record_lock))
    handle = cublas.CublasHandle()
    del handle
    assert held == [True, True]


def test_a_stream_from_a_pointer_gives_no_warning() -> None:
    assert events.stream_from_pointer(4711).ptr == 4711
    assert "ExternalStream" not in Path(events.__file__).read_text(encoding="utf-8")


def test_only_the_same_arrays_skip_the_lookup() -> None:
    """Whether a graph exists is looked up for other arrays, and at each call for arrays without a graph."""
    images, other = np.zeros(3), np.zeros(3)
    outputs, others = (Outputs(np.zeros(3, np.uint8)) for _ in range(2))
    captured: list[tuple[Any, Any]] = [(images, outputs)]
    lookups: list[tuple[Any, Any]] = []

    class Known(GpuEngine):
        def __init__(self) -> None:
            self._last = None, None

        def replays_graph_for(self, images: np.ndarray, outputs: Outputs) -> bool:
            lookups.append((images, outputs))
            return any(images is known[0] and outputs is known[1] for known in captured)

    engine = Known()
    assert engine._replays_last_call(images, outputs)
    assert engine._replays_last_call(images, outputs)
    assert len(lookups) == 1
    for given in ((images, others), (other, outputs), (other, others)):
        assert not engine._replays_last_call(*given)
        assert not engine._replays_last_call(*given)
    assert engine._replays_last_call(images, outputs)
    assert len(lookups) == 8


# --- on a simulated GPU, which computes nothing


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_card() as found:
        yield found


def open_fp16_engine(**settings: Any) -> GpuEngine:
    return GpuEngine(plan(build_graph(LENET5, load_weights()), ARCHITECTURE, Choices("fp16")), **settings)


def pinned_images(count: int) -> np.ndarray:
    return pinned_copy(random_images(LENET5, count))


def test_growing_buffers_drop_the_graph(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph would use the freed memory of the old buffers."""
    images = pinned_images(300)
    monkeypatch.setattr(gpu, "MOST_READ", 0)
    with open_fp16_engine() as engine:
        outputs = engine.allocate_outputs(300)
        for _ in range(2):
            for _ in range(2):
                engine.run(images, outputs)
            assert engine.replays_graph_for(images, outputs) and outputs.logits is None
            engine.run(random_images(LENET5, 30 * engine.chunk))
            assert not engine.replays_graph_for(images, outputs)


def test_chunks_are_halved_until_they_fit(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Mock(side_effect=[*[DeviceMemoryError] * 2, *[Mock()] * STREAMS, *[DeviceMemoryError] * 7])
    monkeypatch.setattr(gpu, "StreamBuffers", tries)
    with open_fp16_engine(chunk=100) as engine, pytest.raises(gpu.UserError, match="not even one image fits"):
        assert (engine.chunk, engine.shrunk) == (25, True)
        open_fp16_engine(chunk=100)


@pytest.mark.parametrize("pinned", [True, False])
def test_repeated_batch_sizes_allocate_nothing(pinned: bool, card: FakeCard) -> None:
    images = pinned_images(500) if pinned else random_images(LENET5, 500)
    with open_fp16_engine() as engine:
        pair = engine.allocate_outputs(500), engine.allocate_outputs(500)

        def run_batches() -> None:
            engine.run(images)
            engine.run(images[:20])
            for _ in engine.stream([images, images[:300], images], pair):
                pass

        run_batches()
        before = set(card.allocated)
        run_batches()
        assert set(card.allocated) == before


def test_small_batches_replay_one_graph_a_size(card: FakeCard) -> None:
    """The graph of 6 images also serves 5. For larger batches, kernels read host memory directly, without copies."""
    assert [graph_batch_size(count) for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 97, 1000)] == [
        *(1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 128, 1024)
    ]
    images = random_images(LENET5, 2000)
    with open_fp16_engine() as engine:
        for count, nodes in ((5, 2), (6, 0), (3, 2), (5, 0), (0, 0)):
            card.calls.clear()
            labels, logits = engine.run(images[:count])
            assert labels.shape == (count,) and logits is not None and logits.shape == (count, 10)
            names = [call[0] for call in card.calls]
            assert names.count("node") == nodes and names.count("graph") == (count > 0)
            assert not {"copy", "launch", "launch_ex", "begin_capture"} & {*names}
        card.calls.clear()
        engine.run(images)
        names = [call[0] for call in card.calls if call[0] in ("copy", "launch", "launch_ex", "wait")]
        assert names == [*["launch", "launch_ex"] * 2, "wait"]
    assert [call for call in card.calls if call[0] == "destroy"] == [("destroy",)] * 2


def test_an_incomplete_graph_is_not_replayed(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between two kernels must not leave a graph without the second one."""
    images, add = random_images(LENET5, 5), KernelGraph.add_kernel

    def interrupt_second_kernel(self: KernelGraph, *given: Any, **options: Any) -> None:
        if self._last is not None:
            raise KeyboardInterrupt
        add(self, *given, **options)

    with open_fp16_engine() as engine:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(KernelGraph, "add_kernel", interrupt_second_kernel)
            engine.run(images)
        card.calls.clear()
        engine.run(images)
        assert [call[0] for call in card.calls if call[0] in ("node", "graph")] == ["node", "node", "graph"]


def test_all_ways_to_run_share_the_weights(card: FakeCard) -> None:
    images = cupy.ndarray((7, 28, 28), np.uint8)
    with open_fp16_engine(chunk=50) as engine:
        engine.run(random_images(LENET5, 100))
        engine.run(random_images(LENET5, 100), engine.allocate_outputs(100))
        engine.run_on_card(images, cupy.cuda.Stream())
    launches = [call for call in card.calls if call[0].startswith(("launch", "node")) and call[1].startswith("conv")]
    assert len(launches) > 4 and len({call[-2] for call in launches}) == 1


def test_streaming_enqueues_one_array_ahead(card: FakeCard) -> None:
    """The second array is enqueued before the host waits for the first one."""
    with open_fp16_engine(chunk=30, streams=2) as engine:
        card.calls.clear()
        labels = engine.stream([pinned_images(60), pinned_images(30), pinned_images(10)])
        assert len(next(labels)) == 60
        names = [call[0] for call in card.calls]
        assert names.index("wait") > max(place for place, name in enumerate(names) if name == "copy")
        assert names.count("record") == 4
        assert [len(found) for found in labels] == [30, 10]
