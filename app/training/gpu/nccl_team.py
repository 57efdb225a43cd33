"""Sum over a team of GPUs in one machine by NVIDIA's NCCL, through CuPy's binding."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np

from app.base.errors import UserError
from app.cuda.cards import describe_gpu_count


class NcclTeam:
    """A ``Team`` with one GPU per member; it sums values in GPU memory."""

    def __init__(self, rank: int, size: int, nccl: Any, communicator: Any) -> None:
        self.rank, self.size = rank, size
        self._nccl, self._communicator = nccl, communicator
        self._types = {np.dtype(np.float32): nccl.NCCL_FLOAT32, np.dtype(np.float64): nccl.NCCL_FLOAT64}

    def all_reduce(self, values: Any) -> None:
        """Enqueue the sum over all members, which replaces ``values`` in each of them; return at once."""
        address, stream = values.data.ptr, cupy.cuda.get_current_stream().ptr
        self._communicator.allReduce(
            address, address, values.size, self._types[values.dtype], self._nccl.NCCL_SUM, stream
        )


@contextmanager
def join_nccl_team(rank: int, size: int, name: Any) -> Iterator[NcclTeam]:
    """Make GPU ``rank`` current and join the team with it; yield the team when all ``size`` members have joined.

    name: what ``create_nccl_id`` returned in rank 0. Raises UserError.
    """
    with _import_nccl() as nccl:
        cupy.cuda.Device(rank).use()
        # A ring sums in the same order for every size; other algorithms may not. For few values it is as fast.
        os.environ.setdefault("NCCL_ALGO", "Ring")
        communicator = nccl.NcclCommunicator(size, name, rank)
        try:
            yield NcclTeam(rank, size, nccl, communicator)
        except BaseException:
            communicator.abort()  # without waiting for other members, which may have ended
            raise
        communicator.destroy()


def create_nccl_id() -> Any:
    """Return a new, picklable name (NCCL's id) by which the members of a team find each other. Raises UserError."""
    with _import_nccl() as nccl:
        return nccl.get_unique_id()


def check_nccl_gpus(count: int) -> None:
    """Raise UserError unless there are ``count`` GPUs and NCCL is installed."""
    cards = cupy.cuda.runtime.getDeviceCount()
    if count > cards:
        raise UserError(
            f"{count} workers need one GPU each, but {describe_gpu_count(cards)}: use fewer --workers, or use --device "
            "cpu"
        )
    with _import_nccl():
        pass


@contextmanager
def _import_nccl() -> Iterator[Any]:
    """Yield CuPy's binding of NCCL; errors of NCCL in the block become UserErrors. Raises UserError without NCCL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning of several lines repeats the error below
        from cupy.cuda import nccl
    if not nccl.available:
        package = f"nvidia-nccl-cu{cupy.cuda.runtime.runtimeGetVersion() // 1000}"
        raise UserError(f"--workers on GPUs needs NCCL, which does not load: pip install {package}, or use --workers 1")
    try:
        yield nccl
    except nccl.NcclError as error:
        raise UserError(f"NCCL reported {error}: set NCCL_DEBUG=WARN for details; or train with --workers 1") from error
