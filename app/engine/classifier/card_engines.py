"""A classifier's engines on a GPU. They also take images in GPU memory, in arrays and on streams of any library."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.streams import stream_at
from app.engine.buffers import ALIGNED
from app.engine.classifier.arguments import FLOATS, BadArgumentError, as_batch, check_bytes, is_tensor
from app.engine.classifier.engines import Engines
from app.engine.gpu import GpuEngine
from app.engine.interface import Engine
from app.engine.small_batches import MOST
from app.layers import Shape
from app.network.graph import Graph
from app.planning.matching import Choices


def as_cupy_array(images: Any, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a CuPy view of the images, ready on ``stream``, CuPy's current stream. Raises BadArgumentError."""
    if isinstance(images, cupy.ndarray):
        return images
    try:
        if is_tensor(images) and (dtype := _TENSOR_TYPES.get(str(images.dtype))) and not images.requires_grad:
            return _view_tensor(images, dtype, stream)
        if hasattr(images, "__dlpack__"):
            return cupy.from_dlpack(images)
        return _view_interface(images, images.__cuda_array_interface__, stream)
    except (BufferError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadArgumentError(f"the array of images on the card cannot be read: {reason}") from None


_TENSOR_TYPES = {f"torch.{name}": np.dtype(name) for name in ("uint8", *FLOATS)}


def _view_tensor(tensor: Any, dtype: np.dtype, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """View a tensor of PyTorch, as ``cupy.from_dlpack`` does in 30 µs more."""
    torch, number = sys.modules["torch"], tensor.get_device()
    ready = torch.cuda.current_stream(number).cuda_stream
    if ready != stream.ptr:
        stream.wait_event(stream_at(ready).record())
    if not tensor.numel():  # it may have no address
        return cupy.empty(tuple(tensor.shape), dtype)
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), dtype.itemsize, tensor, number)  # size: unchecked
    gaps = None if tensor.is_contiguous() else tuple(step * dtype.itemsize for step in tensor.stride())
    return cupy.ndarray(tuple(tensor.shape), dtype, cupy.cuda.MemoryPointer(memory, 0), gaps)


def _view_interface(owner: Any, interface: dict[str, Any], stream: cupy.cuda.Stream) -> cupy.ndarray:
    """View an array by its ``__cuda_array_interface__``: CuPy would make the host wait for the array's stream."""
    ready = interface.get("stream")
    if ready is not None and ready != (stream.ptr or 1):  # the interface calls the null stream 1
        stream.wait_event(stream_at(0 if ready == 1 else ready).record())
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if 0 in shape:  # an empty array may have no address
        return cupy.empty(shape, dtype)
    memory = cupy.cuda.UnownedMemory(interface["data"][0], dtype.itemsize, owner)  # size: unchecked
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), interface.get("strides"))


def upload_copy(images: np.ndarray, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a copy of the images in GPU memory, ready on ``stream``."""
    copy = cupy.empty(images.shape, images.dtype)
    copy.set(images, stream=stream)
    return copy


def fetch(array: cupy.ndarray, stream: cupy.cuda.Stream) -> np.ndarray:
    """Copy an array that is written from any GPU to host memory, on ``stream``; in any thread, with any current GPU."""
    with array.device:
        return array.get(stream=stream)


def as_stream(stream: Any) -> cupy.cuda.Stream:
    """Return a CuPy stream for a stream of CuPy or PyTorch, or a pointer. Raises BadArgumentError for anything else."""
    if hasattr(stream, "ptr"):
        return stream
    pointer = getattr(stream, "cuda_stream", stream)
    if isinstance(pointer, int) and not isinstance(pointer, bool):
        return stream_at(pointer)
    raise BadArgumentError(f"stream={stream!r}: give a stream of CuPy or PyTorch, or a stream's pointer")


class CardEngines(Engines):
    """A classifier's engines on CUDA's GPU ``number``, or the current one for None. Any thread may call them.

    The first call of a form (shape and type of an image) compiles and allocates, and so does a larger batch. After the
    largest batch, calls allocate nothing but the results.
    """

    device = "cuda"

    def __init__(self, choices: Choices, number: int | None) -> None:
        super().__init__(choices)
        self.arithmetic = None
        with cupy.cuda.Device(number):
            self.place = self._card = cupy.cuda.Device()
        self._threads = threading.local()
        self._given: dict[tuple[Shape, np.dtype], GpuEngine] = {}  # by the given batch's shape without N, and type

    def run_on_card(self, graph: Graph, images: Any, stream: Any = None, *, wait: bool) -> tuple[Any, Any, bool]:
        """Enqueue images on a stream; return labels, scores, and whether the caller gave a single image.

        images: a GPU array of any library, or (N, C, H, W) in host memory. stream: None for CuPy's current one. wait:
        wait for the results and return them in host memory, else as CuPy arrays. Raises UserError; BadArgumentError for
        wrong images.
        """
        if runtime.getDevice() != self._card.id:
            with self._card:
                return self.run_on_card(graph, images, stream, wait=wait)
        if not hasattr(self._threads, "bound"):  # cuLaunchKernelEx fails in a thread without a context
            runtime.setDevice(self._card.id)
            self._threads.bound = True
        if stream is not None:
            with as_stream(stream):
                return self.run_on_card(graph, images, wait=wait)
        current = cupy.cuda.get_current_stream()
        array = upload_copy(images, current) if isinstance(images, np.ndarray) else as_cupy_array(images, current)
        if array.data.device_id != self._card.id:
            raise BadArgumentError(
                f"the images lie on GPU {array.data.device_id}, the classifier on GPU {self._card.id}: copy them there"
            )
        engine, single = self._given.get((array.shape[1:], array.dtype)), False
        if engine is None:
            array, engine, single = self._prepared(graph, array)
        if not array.flags.c_contiguous or array.data.ptr % ALIGNED:
            array = array.copy()
        if wait and len(array) <= MOST:
            return *engine.on_card.run_to_host(array, current), single
        labels, scores = engine.run_on_card(array, current)
        return (labels.get(stream=current), scores.get(stream=current), single) if wait else (labels, scores, single)

    def results(self, engine: Engine, images: np.ndarray) -> tuple[np.ndarray, Any]:
        """See ``Engines.results``. Logits of large batches stay in GPU memory until they are asked for."""
        assert isinstance(engine, GpuEngine)
        labels, logits = engine.run_ordinary(images, leave_logits=True)
        return labels, logits if isinstance(logits, np.ndarray) else partial(fetch, logits, engine.on_card.stream)

    def _prepared(self, graph: Graph, array: cupy.ndarray) -> tuple[cupy.ndarray, GpuEngine, bool]:
        """Open the engine for a new shape or type; return the images in its form, the engine, and whether single."""
        batch = as_batch(array, graph, array.dtype.name)
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
