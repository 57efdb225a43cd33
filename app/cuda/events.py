"""Measure the time between two events on a stream."""

from collections.abc import Callable

import cupy


class EventPair:
    """Two CUDA events, one before and one after the work that ``around`` enqueues. They can be reused."""

    def __init__(self) -> None:
        self._before, self._after = cupy.cuda.Event(), cupy.cuda.Event()

    def around(self, enqueue: Callable[[], object], stream: cupy.cuda.Stream) -> None:
        """Record an event, call ``enqueue``, record the other; do not wait."""
        self._before.record(stream)
        enqueue()
        self._after.record(stream)

    def synchronize(self) -> None:
        """Wait for the second event."""
        self._after.synchronize()

    @property
    def ms(self) -> float:
        """Milliseconds between the events; the device must have passed both."""
        elapsed: float = cupy.cuda.get_elapsed_time(self._before, self._after)
        return elapsed
