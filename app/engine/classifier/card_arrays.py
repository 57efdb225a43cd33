"""Arrays on the card, of any library, as CuPy arrays without a copy; and streams of any library.

Through DLPack a library lets our stream wait for its own. An array that has only ``__cuda_array_interface__`` names the
stream to wait for, if any.
"""

from typing import Any

import cupy
import numpy as np

from app.cuda.streams import borrowed
from app.engine.classifier.arguments import BadArgumentError


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
