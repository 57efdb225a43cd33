"""Train data-parallel: each process takes a share of every batch, and the team sums the gradients (all-reduce).

Every member runs the same loop (loop.run_epoch) with its trainer, from the same start. It computes the gradients of its
share of a batch (``member_share``), divided by the number of images in the whole batch. One call sums them, and every
member makes the same update. L2 is added after the sum, because otherwise each member would add it. Loss and correct
answers are summed too, also on the validation images: they must be equal in all members, or their loops would diverge.
Dropout and augmentation are functions of the image, so the size of the team affects only the order, and therefore the
rounding, of sums. A share may be empty: its gradients are 0.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

SLOT_BYTES = 1 << 20  # bytes of shared memory that a member writes at a time
HERE = b"."


class Team(Protocol):
    """The processes that share each batch. rank: number of this process among ``size``; rank 0 runs the command."""

    rank: int
    size: int

    def all_reduce(self, values: Any) -> None:
        """Replace ``values`` by the sum over all members, bit-identical in all members and in every run.

        values: contiguous float32 or float64; a NumPy array, or for GPUs a CuPy array summed on the current stream. All
        members make the same calls, with arrays of one shape and type.
        """


class SingleProcessTeam:
    """The team of a training that runs in one process, which computes whole batches."""

    rank, size = 0, 1

    def all_reduce(self, values: Any) -> None:
        """Do nothing: with one member, the values are already the sum."""


class SharedMemoryTeam:
    """Processes of one machine that sum in shared memory, in the order of their ranks.

    links: in rank 0 the connections to all others, in others that to rank 0. memory: ``shared_memory_bytes(size)``
    bytes. A member that ends closes its connections: ``all_reduce`` then raises EOFError or OSError, in rank 0 at once.
    """

    def __init__(self, rank: int, size: int, links: Sequence[Connection], memory: Any) -> None:
        self.rank, self.size = rank, size
        self._links = links
        # Two halves in turn: a member that reaches the second barrier after writing one half has read the other.
        self._halves = np.frombuffer(memory, np.uint8).reshape(2, size, -1)
        self._turn = 0

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace ``values`` by the sum over all members. Raises EOFError or OSError if one has ended."""
        flat = values.reshape(-1)
        step = self._halves.shape[2] // flat.itemsize
        for at in range(0, flat.size, step):
            piece = flat[at : at + step]
            slots = self._halves[self._turn][:, : piece.nbytes].view(piece.dtype)
            slots[self.rank] = piece
            self._wait_for_all_members()
            piece[:] = slots[0]
            for slot in slots[1:]:
                piece += slot
            self._turn = 1 - self._turn

    def _wait_for_all_members(self) -> None:
        """Wait until all members have called this method."""
        if self.rank == 0:
            for link in self._links:
                link.recv_bytes()
            for link in self._links:
                link.send_bytes(HERE)
        else:
            self._links[0].send_bytes(HERE)
            self._links[0].recv_bytes()


def shared_memory_bytes(size: int) -> int:
    """Return the bytes of shared memory that a team of ``size`` needs."""
    return 2 * size * SLOT_BYTES


def member_share(items: np.ndarray, team: Team) -> np.ndarray:
    """Return this member's contiguous share of the items, (n, …); lengths of shares differ by at most 1."""
    return items[len(items) * team.rank // team.size : len(items) * (team.rank + 1) // team.size]
