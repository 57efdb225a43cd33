"""Capture a repeated batch as a CUDA graph: one launch replaces several calls per chunk."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import is_pinned


class BatchGraph:
    """The CUDA graph of a batch. It is captured when a second call has the same arrays (images, then outputs)."""

    def __init__(self) -> None:
        self._arrays: tuple[np.ndarray, ...] = ()  # kept alive, so that no other arrays get their addresses
        self._key: tuple[Any, ...] = ()
        self._graph: Any = None
        self._tried = False
        self._stream: cupy.cuda.Stream | None = None  # created for the first graph

    def has_graph_for(self, arrays: Sequence[np.ndarray]) -> bool:
        """Return whether a graph of exactly these arrays has been captured."""
        if self._graph is None:
            return False
        same = len(arrays) == len(self._arrays) and all(a is b for a, b in zip(arrays, self._arrays, strict=True))
        return same or self._key == _address_key(arrays)  # reading addresses takes microseconds

    def launch(self) -> None:
        """Launch the graph and wait until its results are complete."""
        assert self._stream is not None
        self._graph.launch(self._stream)
        self._stream.synchronize()

    def capture_if_repeated(
        self, arrays: Sequence[np.ndarray], replayable: Callable[[], Callable[[cupy.cuda.Stream], None]]
    ) -> None:
        """Capture the batch if its arrays equal those of the previous call; remember the arrays.

        replayable: is called once before the capture, during which nothing can be allocated; returns the function that
        enqueues the batch. Copies from or to pageable memory cannot be captured. If the driver cannot build the graph
        (device memory may be full), later calls enqueue the batch without one.
        """
        key = _address_key(arrays)
        if key != self._key:
            self._key, self._arrays, self._graph, self._tried = key, tuple(arrays), None, False
        elif not self._tried and all(is_pinned(array) for array in arrays):
            self._tried = True
            with suppress(runtime.CUDARuntimeError):
                self._graph = self._capture_graph(replayable())

    def _capture_graph(self, enqueue: Callable[[cupy.cuda.Stream], None]) -> Any:
        origin = self._stream = self._stream or cupy.cuda.Stream(non_blocking=True)
        with DEVICE_WIDE:
            # Relaxed: other threads may allocate meanwhile, and this one's garbage collector may free.
            origin.begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                enqueue(origin)
            except BaseException:
                with suppress(runtime.CUDARuntimeError):
                    origin.end_capture()  # or the streams would stay in capture mode
                raise
            graph = origin.end_capture()
        graph.upload(origin)
        return graph


def _address_key(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    return tuple((array.ctypes.data, array.dtype, array.shape, array.strides) for array in arrays)


# A lock for capturing a graph or waiting for the whole device: such a wait in another thread breaks a capture.
DEVICE_WIDE = RLock()
