"""Cause faults in workers: Dask loads this module into each worker (its setting ``preload``).

FAULTS names a folder with an empty file for each fault, in the order of the names: ``1-SIGKILL``, ``2-exit``. A process
causes the next fault in the middle of its work, at read number READS, and first removes the file, so that the fault
happens once.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any


class CUDARuntimeError(Exception):
    """An error named like CuPy's, with the status of a failed launch."""

    status = 719


_modules: list[Any] = []  # for as long as the process lives: on a lost card they cannot be freed in silence


def take_deed(folder: Path) -> str | None:
    """Return the next fault, which no other process gets; None if none is left."""
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
        _write_nowhere()
    os.kill(os.getpid(), getattr(signal, deed))


def _write_nowhere() -> None:
    """Raise cudaErrorIllegalAddress, now and at every later call of the process."""
    from cupy.cuda import runtime  # here: processes without a GPU load this file, too

    from app.cuda.compiler import architecture_name, compile_kernel
    from app.cuda.device import compute_capability
    from app.kernels.launch import load_cubin

    module = load_cubin(
        compile_kernel(Path(__file__).with_name("write_nowhere.cu"), {}, architecture_name(*compute_capability()))
    )
    _modules.append(module)
    module.get_function("write_nowhere")((1,), (1,), (0,))
    runtime.deviceSynchronize()


def watched(read: Callable[..., int], folder: Path, reads: int, slow: float) -> Callable[..., int]:
    """Return ``os.preadv``, which reads images of plain files, with the next fault at call ``reads``. slow: seconds."""
    calls = count(1)  # many lanes call at the same time: each call has a number of its own

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        number = next(calls)
        time.sleep(slow)
        if number == reads and (deed := take_deed(folder)) is not None:
            do(deed)
        return read(descriptor, buffers, offset)

    return preadv


def dask_setup(_: object) -> None:
    """Install the faults; Dask calls this function when a worker starts."""
    reads, slow = int(os.environ.get("READS", "20")), float(os.environ.get("SLOW", "0"))
    os.preadv = watched(os.preadv, Path(os.environ["FAULTS"]), reads, slow)
