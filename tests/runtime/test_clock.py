"""The two clocks: what they enclose, and in which order."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.runtime.clock import clocked, host_timed


def test_the_host_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def call() -> str:
        now[0] += 0.002
        return "result"

    monkeypatch.setattr("app.runtime.clock.perf_counter", lambda: now[0])
    assert clocked(call) == ("result", pytest.approx(2.0))
    assert host_timed(call, 3, warmup=2).samples == pytest.approx((2.0,) * 3)
    assert now[0] == pytest.approx(6 * 0.002)


def test_events_are_recorded_around_what_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.cuda import events

    diary: list[tuple[str, Any]] = []

    class FakeEvent:
        def record(self, stream: str) -> None:
            diary.append(("record", stream))

        def synchronize(self) -> None:
            diary.append(("wait", self))

    fake = SimpleNamespace(Event=FakeEvent, get_elapsed_time=lambda first, last: (first, last))
    monkeypatch.setattr(events, "cupy", SimpleNamespace(cuda=fake))
    pair: Any = events.EventPair()
    pair.around(lambda: diary.append(("enqueue", None)), "stream")
    assert diary == [("record", "stream"), ("enqueue", None), ("record", "stream")]
    pair.synchronize()
    before, after = pair.ms
    assert before is not after and diary[-1] == ("wait", after)
