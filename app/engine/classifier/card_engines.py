"""Open and run a classifier's engines on a GPU, which also take GPU arrays and streams of any library."""

from __future__ import annotations

import sys
import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.events import stream_from_pointer
from app.cuda.memory import pinned_array
from app.engine.buffers import ALIGNED
from app.engine.classifier.arguments import FLOATS, BadArgumentError, check_resize_dtype, is_tensor, reshape_to_batch
from app.engine.classifier.engines import Engines
from app.engine.gpu import GpuEngine
from app.engine.interface import Engine, Outputs
from app.engine.small_batches import MOST
from app.layers import Shape
from app.network.graph import Graph
from app.planning.matching import Choices

if TYPE_CHECKING:
    from app.engine.resident import ResidentKernel


def as_cupy_array(images: Any, stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a CuPy view of a GPU array of any library, for CuPy's current ``stream``. Raises BadArgumentError."""
    if isinstance(images, cupy.ndarray):
        return images
    try:
        if is_tensor(images) and (dtype := _TENSOR_TYPES.get(str(images.dtype))) and not images.requires_grad:
            make_stream_wait(stream, current_torch_stream(images.get_device()), cupy.cuda.Event(disable_timing=True))
            return _view_torch_tensor(images, dtype)
        # A JAX array that is ready needs no wait, which DLPack would include. Some JAX arrays lack the interface.
        ready = getattr(images, "is_ready", bool)()
        interface = getattr(images, "__cuda_array_interface__", None) if ready else None
        if interface is None and hasattr(images, "__dlpack__"):
            return cupy.from_dlpack(images)
        return _view_cuda_array_interface(images, interface or images.__cuda_array_interface__, stream)
    except (BufferError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadArgumentError(f"the array of images on the card cannot be read: {reason}") from None


_TENSOR_TYPES = {f"torch.{name}": np.dtype(name) for name in ("uint8", *FLOATS)}


def current_torch_stream(number: int) -> int:
    """Return the pointer of PyTorch's current stream on GPU ``number``."""
    torch: Any = sys.modules["torch"]
    # PyTorch's compiler generates calls of this function, which creates no stream object.
    pointer = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    found: int = torch.cuda.current_stream(number).cuda_stream if pointer is None else pointer(number)
    return found


def make_stream_wait(stream: cupy.cuda.Stream, other: int, event: cupy.cuda.Event) -> None:
    """Make ``stream`` wait for the work so far on the stream with pointer ``other``; ``event`` is recorded there."""
    if other != stream.ptr:
        runtime.eventRecord(event.ptr, other)
        stream.wait_event(event)


def _tensor_address(tensor: Any) -> tuple[bool, int]:
    """Return whether kernels can read a PyTorch tensor (contiguous, without gradient), and its address, 0 for none."""
    try:
        return tensor.is_contiguous() and not tensor.requires_grad, tensor.data_ptr()
    except RuntimeError:  # sparse tensors have no address
        return False, 0


def _view_torch_tensor(tensor: Any, dtype: np.dtype) -> cupy.ndarray:
    """Return a CuPy view of a PyTorch tensor of this dtype. (``cupy.from_dlpack`` would take 30 µs longer.)"""
    number = tensor.get_device()
    if not tensor.numel():  # it may have no address
        return cupy.empty(tuple(tensor.shape), dtype)
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), dtype.itemsize, tensor, number)  # size: unchecked
    gaps = None if tensor.is_contiguous() else tuple(step * dtype.itemsize for step in tensor.stride())
    return cupy.ndarray(tuple(tensor.shape), dtype, cupy.cuda.MemoryPointer(memory, 0), gaps)


def _view_cuda_array_interface(owner: Any, interface: dict[str, Any], stream: cupy.cuda.Stream) -> cupy.ndarray:
    """Return a CuPy view of the array ``owner``, made from its ``__cuda_array_interface__``.

    ``stream`` waits for the stream of the array. (CuPy's own conversion would make the host wait.)
    """
    other = interface.get("stream")
    if other is not None:  # the interface calls the null stream 1
        make_stream_wait(stream, 0 if other == 1 else other, cupy.cuda.Event(disable_timing=True))
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


def fetch_to_host(array: cupy.ndarray, stream: cupy.cuda.Stream) -> np.ndarray:
    """Copy an array of any GPU to host memory on ``stream``; return the copy. Any thread may call this function."""
    with array.device:
        return array.get(stream=stream)


_cached_stream = lru_cache(16)(lambda pointer, _device: stream_from_pointer(pointer))


def as_stream(stream: Any, device: int = 0) -> cupy.cuda.Stream:
    """Return a stream of CuPy or PyTorch, or its pointer on GPU ``device``, as CuPy's. Raises BadArgumentError."""
    if hasattr(stream, "ptr"):
        return stream
    pointer = getattr(stream, "cuda_stream", stream)
    if isinstance(pointer, int) and not isinstance(pointer, bool):
        return _cached_stream(pointer, device)
    raise BadArgumentError(f"stream={stream!r}: give a stream of CuPy or PyTorch, or a stream's pointer")


class CardEngines(Engines):
    """A classifier's engines on CUDA's GPU ``number``; None is the current GPU. Any thread may call them.

    The first call with a shape and type of image compiles kernels and allocates memory; so does a larger batch. After
    the largest batch, calls allocate only the results.
    """

    device = "cuda"

    def __init__(self, choices: Choices, number: int | None) -> None:
        super().__init__(choices)
        self.arithmetic = None
        with cupy.cuda.Device(number):
            self.device_context = self._card = cupy.cuda.Device()
            self._event = cupy.cuda.Event(disable_timing=True)  # recorded on other libraries' streams
        self._number: int = self._card.id
        self._threads = threading.local()
        self._given: dict[tuple[Shape, Any], GpuEngine] = {}  # (shape without N, type) of arrays → engine

    def run_on_card(self, graph: Graph, images: Any, stream: Any = None, *, wait: bool) -> tuple[Any, Any, bool]:
        """Enqueue images on a stream; return labels, scores, and whether the caller gave a single image.

        images: GPU array of any library, or (N, C, H, W) in host memory. stream: None for CuPy's current one. wait:
        wait for the results and return them in host memory; otherwise return CuPy arrays. Raises UserError, and
        BadArgumentError for wrong images.
        """
        if not self._is_current_gpu():
            with self._card:
                return self.run_on_card(graph, images, stream, wait=wait)
        if stream is None:
            return self._run_on_stream(cupy.cuda.get_current_stream(), graph, images, wait)
        with as_stream(stream, self._number) as current:
            return self._run_on_stream(current, graph, images, wait)

    def _is_current_gpu(self) -> bool:
        """Return whether the engines' GPU is this thread's current GPU; if so, bind its context to the thread."""
        if runtime.getDevice() != self._number:
            return False
        if not hasattr(self._threads, "bound"):  # cuLaunchKernelEx fails in a thread without a context
            runtime.setDevice(self._number)
            self._threads.bound = True
        return True

    def _run_on_stream(self, stream: cupy.cuda.Stream, graph: Graph, images: Any, wait: bool) -> tuple[Any, Any, bool]:
        array, single = images, False  # ``array`` keeps the memory at its address alive
        known = self._match_known_gpu_array(array, stream)
        if known is None and not isinstance(images, cupy.ndarray):
            array = upload_copy(images, stream) if isinstance(images, np.ndarray) else as_cupy_array(images, stream)
            known = self._match_known_gpu_array(array, stream)
            if known is not None and is_tensor(images):
                self._given[array.shape[1:], images.dtype] = known[0]
        if known is None:
            array, engine, single = self._prepare_engine(graph, array)
            known = engine, len(array), array.data.ptr
        engine, count, address = known
        if not wait:
            return *engine.card_runner.run(count, address, stream), single
        found = engine.card_runner.run_to_host(count, address, stream, leave_logits=count > MOST)
        return *self._defer_logits_copy(engine, found), single

    def _match_known_gpu_array(self, images: Any, stream: cupy.cuda.Stream) -> tuple[GpuEngine, int, int] | None:
        """Return engine, number of images and address of a GPU array whose shape and type an earlier call had.

        Return None for any other array, and for one that kernels cannot read without a copy. To save time, no CuPy view
        of the array is created.
        """
        if type(images) is cupy.ndarray:
            engine, memory = self._given.get((images.shape[1:], images.dtype)), images.data
            dense, number, address = images.flags.c_contiguous, memory.device_id, memory.ptr
        elif is_tensor(images):
            engine, number = self._given.get((images.shape[1:], images.dtype)), images.get_device()
            dense, address = _tensor_address(images)
        else:
            return None
        if engine is None or not dense or address % ALIGNED or number != self._number:
            return None
        if type(images) is not cupy.ndarray:
            make_stream_wait(stream, current_torch_stream(number), self._event)
        return engine, images.shape[0], address

    def compute_results(self, engine: Engine, images: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return labels, and the logits or, for large batches, a function that returns them. images: (N, C, H, W)."""
        assert isinstance(engine, GpuEngine)
        if not self._is_current_gpu():
            with self._card:
                return self.compute_results(engine, images)
        return self._defer_logits_copy(engine, engine.run_without_graph(images, leave_logits=True))

    def empty(self, shape: Shape) -> np.ndarray:
        """Return an uninitialised uint8 array of this shape in page-locked memory."""
        with self._card:
            return pinned_array(shape, np.uint8)

    def resident_kernel(self, graph: Graph) -> ResidentKernel:
        """Return a persistent kernel for up to eight uint8 images a call. Raises UserError if none fits ``graph``."""
        from app.engine.resident import ResidentKernel

        with self._card:
            engine = self.engine_for(graph, np.dtype(np.uint8))
            assert isinstance(engine, GpuEngine)
            return ResidentKernel(engine.loaded)

    def _defer_logits_copy(self, engine: GpuEngine, found: Outputs) -> tuple[np.ndarray, Any]:
        labels, logits = found
        return labels, logits if isinstance(logits, np.ndarray) else partial(
            fetch_to_host, logits, engine.card_runner.stream
        )

    def _prepare_engine(self, graph: Graph, array: cupy.ndarray) -> tuple[cupy.ndarray, GpuEngine, bool]:
        """Return images in the form that kernels read, their engine, and whether they are a single image.

        A new shape or type of image opens an engine.
        """
        if (number := array.data.device_id) != self._number:
            raise BadArgumentError(
                f"the images lie on GPU {number}, the classifier on GPU {self._number}: copy them there"
            )
        batch = reshape_to_batch(array, graph, array.dtype.name)
        check_resize_dtype(batch.graph, array.dtype.name)
        images = batch.images if array.dtype == np.uint8 else batch.images.astype(np.float32, copy=False)
        engine = self.engine_for(batch.graph, images.dtype)
        assert isinstance(engine, GpuEngine)
        if not batch.single and images.dtype == array.dtype:
            self._given[array.shape[1:], array.dtype] = engine
        if not images.flags.c_contiguous or images.data.ptr % ALIGNED:
            images = images.copy()
        return images, engine, batch.single

    def close(self) -> None:
        """Free the memory of all engines."""
        super().close()
        self._given = {}
