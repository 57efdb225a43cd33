"""Recording a run: events round every kernel and copy, on a card that only keeps the time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.bench.profile import spans
from app.bench.profile.spans import Span
from app.kernels.variant import ConstantCopy, KernelLaunch


class FakeEvent:
    def __init__(self) -> None:
        self.at, self.ptr = 0.0, id(self)

    def synchronize(self) -> None:
        pass


class FakeLaunch:
    """Two pieces of a variant that copies filters, then launches."""

    def __init__(self, card: FakeCard) -> None:
        actions = ConstantCopy("filters", 0, 4), KernelLaunch(32, lambda _: (1, 1, 1))
        self.kernel, self._card = SimpleNamespace(config=SimpleNamespace(actions=actions)), card

    def __call__(self, stream: int, images: int) -> None:
        for _ in range(2):
            self._card.runtime.memcpyAsync(1, 2, 16, 3, stream)
            self._card.driver.launchKernel(9, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0)


class FakeCard:
    """Every copy takes 2 ms, every kernel 5; events take none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.events: dict[int, FakeEvent] = {}
        self.runtime = SimpleNamespace(memcpyAsync=self.taking(2), eventRecord=self.record)
        self.driver = SimpleNamespace(launchKernel=self.taking(5))
        cuda = SimpleNamespace(Event=self.event, get_elapsed_time=lambda first, last: last.at - first.at)
        for name, fake in {
            "runtime": self.runtime,
            "driver": self.driver,
            "cupy": SimpleNamespace(cuda=cuda),
            "Launch": FakeLaunch,
            "loaded_cublas": lambda: None,
        }.items():
            monkeypatch.setattr(spans, name, fake)

    def event(self) -> FakeEvent:
        made = FakeEvent()
        self.events[made.ptr] = made
        return made

    def record(self, event: int, stream: int) -> None:
        self.events[event].at = self.now

    def taking(self, ms: float) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            assert 77 in arguments  # the stream
            self.now += ms

        return call


def test_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    launch = FakeLaunch(card)
    variant = SimpleNamespace(name="constant", entry="conv_constant")
    node = SimpleNamespace(name="conv1+relu1", variant=variant)
    buffers = SimpleNamespace(stream=SimpleNamespace(ptr=77), launches=[launch])
    recorder = spans.Recorder(SimpleNamespace(stream_buffers=[buffers], plan=SimpleNamespace(nodes=[node])))  # type: ignore[arg-type]
    originals = card.runtime.memcpyAsync, card.driver.launchKernel, FakeLaunch.__call__
    for _ in range(2):  # the second recording uses the first one's events
        recorder.start()
        with recorder.watching():
            card.runtime.memcpyAsync(1, 2, 784, 1, 77)
            buffers.launches[0](77, 10)
            card.runtime.memcpyAsync(1, 2, 10, 2, 77)
        recorded = recorder.spans()
        assert [span.kind for span in recorded] == ["h2d", "d2d", "kernel", "d2d", "kernel", "d2h"]
        assert [span.ms for span in recorded] == [2, 2, 5, 2, 5, 2]
        assert [span.nbytes for span in recorded] == [784, 16, 0, 16, 0, 10]
        assert recorded[0].start == 0 and recorded[-1].stop == 18
        assert recorded[2].entry == "conv_constant" and recorded[2].layer == "conv1+relu1"
        assert recorded[0].layer == "" and {span.stream for span in recorded} == {0}
    assert len(card.events) == 13  # two a span, and the origin
    assert originals == (card.runtime.memcpyAsync, card.driver.launchKernel, FakeLaunch.__call__)


def test_names_of_parts() -> None:
    variant: Any = SimpleNamespace(name="im2col-gemm", entry="conv_im2col_gemm")
    part = KernelLaunch(32, lambda _: (1, 1, 1), entry="conv_im2col_gemm_unroll")
    assert spans.describe(part, variant) == ("kernel", "im2col-gemm: unroll", "conv_im2col_gemm_unroll")
    assert spans.describe(KernelLaunch(32, lambda _: (1, 1, 1)), variant)[1:] == ("im2col-gemm", "conv_im2col_gemm")


def test_waiting_for_the_copy_engine_is_no_copying() -> None:
    copies = [Span("h2d", "", "in", stream, 0.0, 1.0 + stream) for stream in (1, 0)]
    second, first = spans.without_queueing(copies)
    assert (first.start, first.stop, second.start, second.stop) == (0, 1, 1, 2)
