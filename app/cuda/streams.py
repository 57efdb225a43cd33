"""Use streams of other owners: of other libraries, or given by their pointers."""

import cupy


class Borrowed:
    """Another owner's stream, given by its pointer, in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, pointer."""
        return 0, self._pointer


def borrowed(pointer: int) -> cupy.cuda.Stream:
    """Return CuPy's view of a stream; its owner keeps it."""
    return cupy.cuda.Stream.from_external(Borrowed(pointer))
