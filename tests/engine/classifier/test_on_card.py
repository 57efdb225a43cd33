"""Test GPU arrays without a GPU: how they are recognised and run in passes, and when results are copied."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy
from cupy.cuda import runtime

from app.engine.card_runner import MOST_BYTES, STEP, CardRunner, max_buffered_images
from app.engine.classifier import Classifier, card_engines
from app.engine.classifier.arguments import BadArgumentError, is_gpu_array
from app.engine.classifier.card_engines import as_stream
from app.network.definitions import NETWORKS
from app.planning.matching import Choices
from app.planning.plan import LOGITS, plan
from tests.support.fake_card import FakeCard, fake_card
from tests.support.networks_for_tests import random_graph


def _device(kind: int) -> Any:
    return SimpleNamespace(__dlpack_device__=lambda: (kind, 0))


def test_gpu_arrays_are_recognised() -> None:
    assert is_gpu_array(_device(2)) and is_gpu_array(_device(13))
    assert is_gpu_array(SimpleNamespace(__cuda_array_interface__={}))
    for other in (np.zeros(3), [1], _device(1), _device(3), 7, None):
        assert not is_gpu_array(other)


def test_a_cpu_classifier_refuses_gpu_arrays() -> None:
    with Classifier("mlp", device="cpu") as classifier:
        image = np.zeros((28, 28), np.uint8)
        for images, options in ((_device(2), {}), (image, {"on_card": True}), (image, {"stream": 0})):
            with pytest.raises(BadArgumentError, match="need a classifier on a GPU: it was made with device='cpu'"):
                classifier(images, **options)


def test_as_stream_accepts_streams_of_any_library() -> None:
    own = cupy.cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, 64)))
    assert as_stream(own) is own
    assert as_stream(SimpleNamespace(cuda_stream=48)).ptr == 48
    assert as_stream(0).ptr == 0 and as_stream(32).ptr == 32
    for wrong in (True, "main", 1.5):
        with pytest.raises(BadArgumentError, match="give a stream of CuPy or PyTorch, or a stream's pointer"):
            as_stream(wrong)


@pytest.mark.parametrize("network", ["lenet5", "fa19"])
def test_kept_buffers_are_limited_and_scores_are_float32(network: str) -> None:
    execution = plan(random_graph(NETWORKS[network]), "sm_90a", Choices("auto"))
    assert execution.buffers[LOGITS] == ("float32", 10)
    most = max_buffered_images(execution)
    assert most % STEP == 0 and STEP <= most <= MOST_BYTES >> 10


@pytest.mark.parametrize(("count", "parts"), [(1, [1]), (32, [32]), (33, [32, 1]), (100, [32, 32, 32, 4]), (0, [])])
def test_a_batch_beyond_the_capacity_takes_several_passes(count: int, parts: list[int]) -> None:
    set_addresses: list[tuple[int, int]] = []
    ran: list[int] = []

    class Launch:
        set_argument_address = staticmethod(lambda place, address: set_addresses.append((place, address)))
        __call__ = staticmethod(lambda stream, images: ran.append(images))

    running, launch = CardRunner.__new__(CardRunner), Launch()
    running.capacity, running._strides = 32, [784, 1, 40]
    running._buffers = SimpleNamespace(launches=[launch])  # type: ignore[assignment]
    running._per_call = [(launch, 0, 0), (launch, 5, 2), (launch, 6, 1)]  # type: ignore[list-item]
    running.enqueue(7, count, (1600, 3200, 4800))
    assert ran == parts
    starts = [32 * index for index in range(len(parts))]
    assert set_addresses == [m for n in starts for m in ((0, 1600 + 784 * n), (5, 4800 + 40 * n), (6, 3200 + n))]


def copied_bytes(card: FakeCard, kind: int) -> int:
    """Return the bytes that were copied in a direction. kind: a ``cudaMemcpyKind``."""
    return sum(call[3] for call in card.calls if call[0] == "copy" and call[4] == kind)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_logits_of_large_batches_are_copied_when_read(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp16, kernels read host memory; in fp32, chunks run on streams, and logits are copied within the GPU."""
    fetched: list[tuple[int, ...]] = []

    def fetch_to_host(array: Any, _: object) -> np.ndarray:
        fetched.append(array.shape)
        return np.full(array.shape, len(fetched), array.dtype)

    monkeypatch.setattr(card_engines, "fetch_to_host", fetch_to_host)
    images = np.zeros((2000, 28, 28), np.uint8)
    with fake_card() as card, Classifier(device="cuda", precision=precision) as classifier:
        for count in (2000, 1024, 2000, 1999):
            card.calls.clear()
            labels = classifier(images[:count])
            assert type(labels) is np.ndarray and labels.shape == (count,)
            if count == 1024:
                assert fetched == [] and type(classifier.logits) is np.ndarray
        assert copied_bytes(card, runtime.memcpyDeviceToDevice) == (0 if precision == "fp16" else 1999 * 40)
        assert copied_bytes(card, runtime.memcpyDeviceToHost) == (0 if precision == "fp16" else 1999)
        with ThreadPoolExecutor(1) as pool, pytest.raises(BadArgumentError, match="nothing was classified yet in this"):
            pool.submit(lambda: classifier.logits).result()
        assert fetched == []
        assert classifier.logits is classifier.logits and fetched == [(1999, 10)]
        classifier(images)
        classifier.close()
        assert classifier.logits.shape == (2000, 10) and (classifier.logits == 2).all()
        np.testing.assert_allclose(classifier.probabilities, 0.1, rtol=1e-6)


def test_logits_go_to_host_memory_if_the_gpu_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_card(), Classifier(device="cuda", precision="fp16") as classifier:

        def raise_out_of_memory(_: int) -> None:
            raise cupy.cuda.memory.OutOfMemoryError(1, 1, 1)

        cupy.cuda.set_allocator(raise_out_of_memory)
        assert classifier(np.zeros((2000, 28, 28), np.uint8)).shape == (2000,)
        assert type(classifier._last.scores) is np.ndarray and classifier.logits.shape == (2000, 10)


class Tensor:
    """The part of a PyTorch tensor that the classifier uses."""

    is_cuda, requires_grad = True, False

    def __init__(self, array: Any, dtype: object) -> None:
        self.array, self.shape, self.dtype = array, array.shape, dtype

    def get_device(self) -> int:
        return 0

    def numel(self) -> int:
        return int(self.array.size)

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return int(self.array.data.ptr)


@pytest.mark.parametrize("raw", [True, False])
def test_a_tensor_is_read_in_place_after_its_stream(raw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third call on, no CuPy view of the tensor is made; the first two calls learn its shape and type."""
    ready, bytes_type = SimpleNamespace(cuda_stream=4711), type("dtype", (), {"__str__": lambda _: "torch.uint8"})()
    ways = {"_C": SimpleNamespace(**({"_cuda_getCurrentRawStream": lambda _: 4711} if raw else {}))}
    current = SimpleNamespace(current_stream=lambda _: ready)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=current, **ways))
    made: list[int] = []
    real = card_engines.as_cupy_array
    monkeypatch.setattr(card_engines, "as_cupy_array", lambda *given: made.append(1) or real(*given))  # type: ignore[func-returns-value]
    with fake_card() as card, Classifier(device="cuda", precision="fp16") as classifier:
        tensor = Tensor(cupy.ndarray((40, 28, 28), np.uint8), bytes_type)
        for call in range(5):
            card.calls.clear()
            labels = classifier(tensor, on_card=call % 2 == 0)
            assert labels.shape == (40,) and type(labels) is (cupy.ndarray if call % 2 == 0 else np.ndarray)
            first = next(call for call in card.calls if call[0].startswith("launch"))
            assert card.place(tensor.data_ptr()) in first
            assert next(call[2] for call in card.calls if call[0] == "record") == 4711
            assert "wait_event" in [call[0] for call in card.calls]
        assert len(made) == 2
        tensor.shape = (40, 28, 27)
        with pytest.raises(BadArgumentError, match="the shape"):
            classifier(tensor)


def test_a_stream_that_uses_the_buffers_is_kept_alive() -> None:
    """If it were freed, a new stream could get its pointer, and would not wait for its work."""
    with fake_card() as card, Classifier(device="cuda", precision="fp16") as classifier:
        images = cupy.ndarray((40, 28, 28), np.uint8)
        stream = cupy.cuda.Stream()
        classifier(images, on_card=True, stream=stream)
        held = weakref.ref(stream)
        del stream
        gc.collect()
        assert held() is not None
        card.calls.clear()
        classifier(images)
        assert [call[0] for call in card.calls if call[0] in ("wait_event", "record", "wait")] == ["wait_event", "wait"]
        card.calls.clear()
        classifier(images, on_card=True, stream=cupy.cuda.Stream())
        assert [call[0] for call in card.calls if call[0] in ("wait_event", "record", "wait")] == ["record"]
        gc.collect()


@pytest.mark.parametrize(("ready", "interfaced"), [(True, True), (True, False), (False, True)])
def test_a_jax_array_waits_unless_it_is_ready(ready: bool, interfaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """DLPack makes the stream wait for the array; the CUDA array interface does not, and some JAX arrays lack it."""
    with fake_card():
        inner = cupy.ndarray((40, 28, 28), np.uint8)
        interface = {"shape": inner.shape, "typestr": "|u1", "data": (inner.data.ptr, True), "version": 2}
        view = cupy.cuda.UnownedMemory
        monkeypatch.setattr(cupy.cuda, "UnownedMemory", lambda *given: view(*given, 0))
        dlpack: list[Any] = []
        monkeypatch.setattr(cupy, "from_dlpack", lambda array: dlpack.append(array) or inner)  # type: ignore[func-returns-value]
        array = SimpleNamespace(is_ready=lambda: ready, __dlpack__=None)
        if interfaced:
            array.__cuda_array_interface__ = interface
        found = card_engines.as_cupy_array(array, cupy.cuda.Stream())
        assert found.data.ptr == inner.data.ptr and found.shape == inner.shape
        assert dlpack == ([] if ready and interfaced else [array])


def test_an_empty_array_is_page_locked_until_it_is_freed() -> None:
    """Kernels read it in place, and it remains valid after its classifier is closed."""
    with fake_card() as card:
        with Classifier(device="cuda", precision="fp16") as classifier:
            empty = classifier.empty(2000)
            place = card.place(empty.ctypes.data)
            assert place is not None and place[0] == "pinned" and empty.shape == (2000, 28, 28)
            card.calls.clear()
            classifier(empty)
            launches = [call for call in card.calls if call[0] == "launch"]
            assert len(launches) == 1 and place in launches[0]
        empty[...] = 1
        assert place[1] in card.allocated
        del empty
        gc.collect()
        assert place[1] not in card.allocated


def test_an_interrupted_copy_gives_up_its_staging_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(256, size=(10_000, 28, 28), dtype=np.uint8)

    def raise_interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with fake_card() as card, Classifier(device="cuda", precision="fp16") as classifier:
        places = []
        for fails in (False, True, False, False):
            card.calls.clear()
            with monkeypatch.context() as patch:
                if fails:
                    patch.setattr(CardRunner, "_enqueue_after_previous", raise_interrupt)
                    with pytest.raises(KeyboardInterrupt):
                        classifier(images)
                    assert [call[0] for call in card.calls] == ["wait"]
                else:
                    assert classifier(images).shape == (10_000,)
                    places.append(next(call[-3][1] for call in card.calls if call[0] == "launch"))
        assert places[0] != places[1] == places[2]
