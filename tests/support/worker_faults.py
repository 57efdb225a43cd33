"""What goes wrong in workers: a module that Dask loads into each of them (its setting ``preload``).

FAULTS names a folder of empty files, one a deed, in the order of their names: ``1-SIGKILL``, ``2-exit``. Every process
does the next deed in the middle of its work, at its read number READS, and removes the file first: so it happens once.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class CUDARuntimeError(Exception):
    """Named as CuPy's, with the status of a launch that failed."""

    status = 719


def take_deed(folder: Path) -> str | None:
    """Return the next deed, which no other process gets; None if all are done."""
    for path in sorted(folder.iterdir()):
        try:
            path.unlink()
        except FileNotFoundError:
            continue  # another process took it
        return path.name.partition("-")[2]
    return None


def do(deed: str) -> None:
    if deed == "exit":
        sys.exit(5)
    if deed == "lost":
        raise CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")
    if deed == "sticky":
        import cupy

        code = 'extern "C" __global__ void write(int* nowhere) { *nowhere = 1; }'
        cupy.RawKernel(code, "write")((1,), (1,), (0,))
        cupy.cuda.runtime.deviceSynchronize()  # cudaErrorIllegalAddress, as in every later call
    os.kill(os.getpid(), getattr(signal, deed))


def watched(read: Callable[..., int], folder: Path, reads: int, slow: float) -> Callable[..., int]:
    """``os.preadv``, which reads the images of plain files, with the next deed at call ``reads``. slow: seconds."""
    calls = 0

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        time.sleep(slow)
        if calls == reads and (deed := take_deed(folder)) is not None:
            do(deed)
        return read(descriptor, buffers, offset)

    return preadv


def dask_setup(_: object) -> None:
    """Called by Dask when a worker starts."""
    reads, slow = int(os.environ.get("READS", "20")), float(os.environ.get("SLOW", "0"))
    os.preadv = watched(os.preadv, Path(os.environ["FAULTS"]), reads, slow)
