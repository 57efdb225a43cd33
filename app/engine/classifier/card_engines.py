"""The engines of a classifier on a GPU: also for images that lie there, in arrays and on streams of any library."""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.streams import borrowed
from app.engine.classifier.arguments import BadArgumentError, check_bytes, shaped
from app.engine.classifier.engines import Engines
from app.engine.gpu import GpuEngine
from app.layers import Shape
from app.network.graph import Graph
from app.planning.matching import Choices


def viewed(images: Any, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a CuPy array of the same memory, ready on ``stream``, CuPy's current one. Raises BadArgumentError."""
    if isinstance(images, cupy.ndarray):
        return images
    try:
        if hasattr(images, "__dlpack__"):
            return cupy.from_dlpack(images)
        return _of_interface(images, images.__cuda_array_interface__, stream)
    except (BufferError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadArgumentError(f"the array of images on the card cannot be read: {reason}") from None


def _of_interface(owner: Any, interface: dict[str, Any], stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Read the interface here: CuPy would let the host wait for the array's stream."""
    ready = interface.get("stream")
    if ready is not None and ready != (stream.ptr or 1):  # 1 is the null stream there
        stream.wait_event(borrowed(0 if ready == 1 else ready).record())
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if 0 in shape:  # it may have no address
        return cupy.empty(shape, dtype)
    memory = cupy.cuda.UnownedMemory(interface["data"][0], dtype.itemsize, owner)  # strides say how far it extends
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), interface.get("strides"))


def uploaded_copy(images: np.ndarray, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a copy on the card, ready on ``stream``."""
    copy = cupy.empty(images.shape, images.dtype)
    copy.set(images, stream=stream)
    return copy


def as_stream(stream: Any) -> cupy.cuda.Stream:
    """Return CuPy's view of a stream of CuPy or PyTorch, or of a pointer. Raises BadArgumentError for anything else."""
    if hasattr(stream, "ptr"):
        return stream
    pointer = getattr(stream, "cuda_stream", stream)
    if isinstance(pointer, int) and not isinstance(pointer, bool):
        return borrowed(pointer)
    raise BadArgumentError(f"stream={stream!r}: give a stream of CuPy or PyTorch, or a stream's pointer")


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
