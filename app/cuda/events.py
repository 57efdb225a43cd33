"""Measure time on the device by CUDA events, in milliseconds, and use streams of other libraries."""

from collections.abc import Callable

import cupy
from cupy.cuda import runtime


class EventPair:
    """Two reusable CUDA events: one before and one after the work that ``record_around`` enqueues."""

    def __init__(self) -> None:
        self._before, self._after = cupy.cuda.Event(), cupy.cuda.Event()

    def record_around(self, enqueue: Callable[[], object], stream: cupy.cuda.Stream) -> None:
        """Record an event, call ``enqueue`` and record the other event, without waiting."""
        self._before.record(stream)
        enqueue()
        self._after.record(stream)

    def synchronize(self) -> None:
        """Wait until the device has reached the second event."""
        self._after.synchronize()

    @property
    def ms(self) -> float:
        """Return the milliseconds between the events. The device must have reached both."""
        elapsed: float = cupy.cuda.get_elapsed_time(self._before, self._after)
        return elapsed


def time_by_events(
    enqueue: Callable[[], object], stream: cupy.cuda.Stream, repeat: int, warmup: int = 0
) -> tuple[float, ...]:
    """Return the ms on the device of each of ``repeat`` calls of ``enqueue``, after ``warmup`` untimed calls."""
    for _ in range(warmup):
        enqueue()
    pairs = [EventPair() for _ in range(repeat)]
    for pair in pairs:
        pair.record_around(enqueue, stream)
    stream.synchronize()
    return tuple(pair.ms for pair in pairs)


class EventSequence:
    """CUDA events that a run records on any streams and later runs reuse. ready: how many to create in advance."""

    def __init__(self, ready: int = 0) -> None:
        self._events = [cupy.cuda.Event() for _ in range(ready)]
        self._recorded = 0

    def restart(self) -> None:
        """Start another run, which reuses the events."""
        self._recorded = 0

    def record(self, stream: int) -> None:
        """Record the next event on a stream, given by its pointer."""
        if self._recorded == len(self._events):
            self._events.append(cupy.cuda.Event())
        runtime.eventRecord(self._events[self._recorded].ptr, stream)
        self._recorded += 1

    def synchronize(self) -> None:
        """Wait until the device has reached the last recorded event."""
        self._events[self._recorded - 1].synchronize()

    @property
    def ms(self) -> list[float]:
        """Return the ms from the first event to each event, including the first. The device must have reached them."""
        first, *_ = self._events
        return [cupy.cuda.get_elapsed_time(first, event) for event in self._events[: self._recorded]]


class BorrowedStream:
    """A stream of another library, given by its pointer, in the form that CuPy accepts (CUDA's stream protocol)."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of CUDA's stream protocol and the stream's pointer."""
        return 0, self._pointer


def stream_from_pointer(pointer: int) -> cupy.cuda.Stream:
    """Return a CuPy stream for the pointer of a stream, which its owner must keep alive."""
    return cupy.cuda.Stream.from_external(BorrowedStream(pointer))
