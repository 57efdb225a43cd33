"""The engines of a classifier on a GPU: also for images that lie there, in arrays and on streams of any library."""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.engine.classifier.arguments import BadArgumentError, check_bytes, shaped
from app.engine.classifier.card_arrays import as_stream, uploaded_copy, viewed
from app.engine.classifier.engines import Engines
from app.engine.gpu import GpuEngine
from app.layers import Shape
from app.network.graph import Graph
from app.planning.matching import Choices

ALIGNED = 16  # bytes; kernels read images in words of this size


class CardEngines(Engines):
    """Those of CUDA's GPU ``number``, None for the current one; from any thread.

    A new form compiles and allocates, and so does a larger batch; after the largest, calls allocate nothing but the
    results.
    """

    device = "cuda"

    def __init__(self, choices: Choices, number: int | None) -> None:
        super().__init__(choices)
        self.arithmetic = None
        with cupy.cuda.Device(number):
            self.place = self._card = cupy.cuda.Device()
        self._threads = threading.local()
        self._given: dict[tuple[Shape, np.dtype], GpuEngine] = {}  # by batches' shape without N and type, as they come

    def run_on_card(self, graph: Graph, images: Any, stream: Any = None) -> tuple[cupy.ndarray, cupy.ndarray, bool]:
        """Enqueue images on a stream, None for CuPy's current one; return labels, scores, and whether it is one image.

        images: on the card, in an array of any library, or (N, C, H, W) in the host's memory. Raises UserError, for
        wrong images BadArgumentError.
        """
        if runtime.getDevice() != self._card.id:
            with self._card:
                return self.run_on_card(graph, images, stream)
        if not hasattr(self._threads, "bound"):  # without a context, a thread's launches by the driver would fail
            runtime.setDevice(self._card.id)
            self._threads.bound = True
        if stream is not None:
            with as_stream(stream):
                return self.run_on_card(graph, images)
        current = cupy.cuda.get_current_stream()
        array = uploaded_copy(images, current) if isinstance(images, np.ndarray) else viewed(images, current)
        if array.data.device_id != self._card.id:
            raise BadArgumentError(
                f"the images lie on GPU {array.data.device_id}, the classifier on GPU {self._card.id}: copy them there"
            )
        engine, single = self._given.get((array.shape[1:], array.dtype)), False
        if engine is None:
            array, engine, single = self._prepared(graph, array)
        if not array.flags.c_contiguous or array.data.ptr % ALIGNED:
            array = array.copy()
        return *engine.run_on_card(array, current), single

    def fetched(self, labels: cupy.ndarray, scores: cupy.ndarray, stream: Any) -> tuple[np.ndarray, np.ndarray]:
        """Wait for what was enqueued on the stream and return copies in the host's memory."""
        with self._card:
            wait = cupy.cuda.get_current_stream() if stream is None else as_stream(stream)
            return labels.get(stream=wait), scores.get(stream=wait)

    def _prepared(self, graph: Graph, array: cupy.ndarray) -> tuple[cupy.ndarray, GpuEngine, bool]:
        """Return images of a form that is new here as an engine takes them, the engine, and whether it is one image."""
        batch = shaped(array, graph, array.dtype.name)
        check_bytes(batch.graph, array.dtype.name)
        images = batch.images if array.dtype == np.uint8 else batch.images.astype(np.float32, copy=False)
        engine = self.of(batch.graph, images.dtype)
        assert isinstance(engine, GpuEngine)
        if not batch.single and images.dtype == array.dtype:
            self._given[array.shape[1:], array.dtype] = engine
        return images, engine, batch.single

    def close(self) -> None:
        """Free the memory of all engines."""
        super().close()
        self._given = {}
