"""Run pieces on one worker, in threads of this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from app.base.interrupts import deferred_interrupts
from app.classify.pieces import GPU_PIECE, Answers, Fault, Piece, Result
from app.classify.worker import Worker

AHEAD = 4  # pieces: while results are written, which takes a while at the end of a shard, the feeders go on
POLL_SECONDS = 0.1  # between two looks for Ctrl-C


class LocalRunner:
    """Runs pieces on a worker: a few at a time, more while they are small or compressed, so that no feeder is."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._flying: dict[Future[Result | Fault], Piece] = {}
        self._landed: deque[tuple[Piece, Future[Result | Fault]]] = deque()

    def run(self, pieces: Iterable[Piece]) -> Answers:
        """See ``Runner``. Closing it closes the worker, too."""
        waiting = iter(pieces)
        most = max(2 * self._worker.place.lanes, AHEAD)
        with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(most) as pool:
            try:
                while True:
                    while len(self._flying) < most and self._has_room() and (piece := next(waiting, None)) is not None:
                        self._flying[pool.submit(self._worker.classify, piece)] = piece
                    if self._landed:
                        piece, future = self._landed.popleft()
                        yield piece, future.result()
                    elif not self._flying:
                        return
                    self._wait()
                    check_interrupt()
            except BaseException:
                self._worker.close()  # otherwise the pool would wait for the pieces in flight
                raise

    def _has_room(self) -> bool:
        """Return whether another piece should start. Results that nobody has taken yet hold it up."""
        if sum(piece.count for piece, _ in self._landed) > GPU_PIECE:
            return False
        flying = self._flying.values()
        return len(flying) < AHEAD or sum(0 if piece.shard.sequential else piece.count for piece in flying) < GPU_PIECE

    def _wait(self) -> None:
        """Move the pieces that are done from those in flight to those that landed; wait a moment if there are none."""
        if self._flying:
            done, _ = wait(self._flying, 0 if self._landed else POLL_SECONDS, FIRST_COMPLETED)
            self._landed.extend((self._flying.pop(future), future) for future in done)
