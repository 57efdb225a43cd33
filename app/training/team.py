"""Processes that train one network together: each takes a share of every batch, and all add up what they found.

Every member runs the same loop (loop.run_epoch) with an engine of its own, from the same start. The engine computes the
gradients of its own share of a batch (``own_share``), divided by the images of the whole batch; the team adds them up
in one call, between gradients and update; then all make the same update. L2 comes after the sum, or it would count once
a member. Loss and correct answers must come out the same for all, or they would part ways: those of a batch are added
up, too; the images held out are shared likewise, or all of them evaluated by each. Dropout and augmentation are
functions of the image, so only the order of the sums, hence their rounding, depends on the team's size. A share may be
empty: its gradients are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

SLOT_BYTES = 1 << 20  # of shared memory that a member writes to at a time
HERE = b"."


class Team(Protocol):
    """rank: this process's number among ``size``, 0 for the lead."""

    rank: int
    size: int

    def add(self, values: Any) -> None:
        """Make ``values`` the sum over all members, in place: the same bits for every member, and each time.

        values: contiguous, float32 or float64; a NumPy array, or for a team of GPUs a CuPy array, which is added up in
        the order of the current stream. All members call it equally often, with arrays of one shape and type.
        """


class Alone:
    """A team of one."""

    rank, size = 0, 1

    def add(self, values: Any) -> None:
        """Nothing to do."""


class SharedMemoryTeam:
    """Processes of one machine that add up in memory they share, in the order of their ranks.

    links: the lead's connections to the others, or another's to the lead. memory: ``shared_bytes(size)`` of it. A
    member that ended has closed its connections: ``add`` then raises EOFError or OSError, in the lead at once.
    """

    def __init__(self, rank: int, size: int, links: Sequence[Connection], memory: Any) -> None:
        self.rank, self.size = rank, size
        self._links = links
        # In two halves, used in turn: whoever has come to the second meeting after writing to one has read the other.
        self._halves = np.frombuffer(memory, np.uint8).reshape(2, size, -1)
        self._turn = 0

    def add(self, values: np.ndarray) -> None:
        """As ``Team`` says."""
        flat = values.reshape(-1)
        step = self._halves.shape[2] // flat.itemsize
        for at in range(0, flat.size, step):
            self._add_piece(flat[at : at + step])

    def _add_piece(self, piece: np.ndarray) -> None:
        slots = self._halves[self._turn][:, : piece.nbytes].view(piece.dtype)
        slots[self.rank] = piece
        self._meet()
        piece[:] = slots[0]
        for slot in slots[1:]:
            piece += slot
        self._turn = 1 - self._turn

    def _meet(self) -> None:
        """Returns when all members are here."""
        if self.rank == 0:
            for link in self._links:
                link.recv_bytes()
            for link in self._links:
                link.send_bytes(HERE)
        else:
            self._links[0].send_bytes(HERE)
            self._links[0].recv_bytes()


def shared_bytes(size: int) -> int:
    """How much memory a SharedMemoryTeam of ``size`` shares."""
    return 2 * size * SLOT_BYTES


def own_share(items: np.ndarray, team: Team) -> np.ndarray:
    """This member's part of the items: what is contiguous in them, by rank; sizes differ by 1 at most."""
    return items[len(items) * team.rank // team.size : len(items) * (team.rank + 1) // team.size]
