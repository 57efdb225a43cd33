"""Use streams that other libraries own, or that a pointer gives."""

import cupy


class Borrowed:
    """A stream of another library, given by its pointer, with the protocol that CuPy reads."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of CUDA's stream protocol and the stream's pointer."""
        return 0, self._pointer


def stream_from_pointer(pointer: int) -> cupy.cuda.Stream:
    """Return a CuPy stream for a pointer; its owner must keep the stream alive."""
    return cupy.cuda.Stream.from_external(Borrowed(pointer))
