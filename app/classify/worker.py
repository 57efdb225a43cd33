"""Classify pieces of shards on one device of this process, and count right answers.

A worker has as many feeders as its engine takes. A feeder is a thread that takes the next block of images of any piece
in flight, reads it into the engine's memory, and makes the device classify it.
"""

from __future__ import annotations

import platform
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

from app.base.clock import Deadline
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.interrupts import deferred_interrupts
from app.classify.active_pieces import ActivePiece, ActivePieceQueue, Feeder
from app.classify.pieces import GPU_PIECE, Answers, DeviceInfo, Piece, PieceFault, PieceResult, count_correct
from app.cuda import device as devices
from app.engine.interface import Engine, FeedingOptions
from app.engine.opening import open_engine
from app.layers import Softmax
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.request import NetworkRequest

JOIN_SECONDS = 3.0  # wait for feeders; one that hangs, as in reading from a lost disk, ends with the process
_on_lost_cards: list[Worker] = []  # kept alive: freeing a lost GPU's memory prints errors


class WorkerSettings(Frozen, kw_only=True):
    """The network and options of a worker. It can be pickled, to open a worker in any process.

    graph: the network, for images of the shards' shape. dtype: type of the images, ``uint8`` or ``float32``. device:
    ``auto``, ``cuda`` (the current GPU) or ``cpu``. precision: as the option ``--precision``. logits: whether results
    include logits. compressed: some shards are compressed, so every core decompresses one. label: name of the device in
    the report; None for its number, or its cores.
    """

    graph: Graph
    dtype: str
    device: str = "auto"
    precision: str = "auto"
    logits: bool = False
    compressed: bool = False
    label: str | None = None


class WorkerClosedError(Exception):
    """The worker was closed while it classified."""


class Worker:
    """A device of this process that classifies pieces. A context manager; threads may call ``classify`` in parallel.

    device_info: describes the device. why_cpu: why ``auto`` chose the CPU, in one line; otherwise None. Raises
    UserError if the device cannot run the network.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._softmax = any(isinstance(step.layer, Softmax) for step in settings.graph.steps[-2:])
        device, self.why_cpu = devices.choose_device(settings.device)
        with devices.translate_gpu_errors():
            self._engine = _open_engine(settings, device)
            self._queue = ActivePieceQueue(self._engine.block)
            self._bodies: list[
                Callable[[Feeder], None]
            ] = []  # the feeders' functions, whose memory lives until ``close``
            self._opened = threading.Semaphore(0)
            self._threads = [
                threading.Thread(target=self._run_feeder, args=(index,), daemon=True)
                for index in range(self._engine.feeders)
            ]
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                self._opened.acquire()
            if self._queue.ended is not None:
                self.close()
                raise self._queue.ended
            found = self._engine.describe()
            device = settings.label or found.device
            self.device_info = DeviceInfo(
                host=platform.node(), lanes=self._engine.feeders, **found._asdict() | {"device": device}
            )

    def _run_feeder(self, index: int) -> None:
        """Classify blocks until the queue ends; feeder thread ``index`` runs this."""
        with self._queue.open_feeder() as feeder:
            try:
                body = self._engine.prepare_feeding(index)
                self._bodies.append(body)
            except BaseException as error:
                self._queue.end(error)  # before ``__init__`` reads it
                raise
            finally:
                self._opened.release()
            body(feeder)

    def classify(self, piece: Piece) -> PieceResult | PieceFault:
        """Read and classify a piece, a range of images of one file; return a ``PieceFault`` if the file is unreadable.

        After an exception the worker cannot be used again.
        """
        try:
            with piece.shard.open_reader() as reader:
                active = ActivePiece(piece, reader, self._settings.graph.class_count if self._settings.logits else None)
                with devices.translate_gpu_errors():
                    self._queue.classify(active)
                correct = None
                if piece.shard.labels_readable_by_piece:
                    classes = self._settings.graph.class_count
                    correct = count_correct(active.labels, piece.shard, reader, piece.first, classes)
        except UserError as error:
            if self._queue.ended is not None:
                raise
            return PieceFault(str(error))
        if active.logits is not None and self._softmax:
            with np.errstate(divide="ignore"):
                np.log(active.logits, out=active.logits)
        return PieceResult(active.labels, active.logits, correct, self.device_info, active.seconds)

    def close(self) -> None:
        """End the pieces in flight and free all memory, except memory that a hanging feeder uses."""
        closed = WorkerClosedError("the worker was closed")
        self._queue.end(closed)
        deadline = Deadline(JOIN_SECONDS)
        for thread in self._threads:
            thread.join(deadline.seconds_left)
        if any(thread.is_alive() for thread in self._threads):
            self._queue.abandon_hanging_feeders()
        elif devices.is_fatal_cuda_error(self._queue.ended or closed):
            _on_lost_cards.append(self)
        else:
            self._bodies.clear()
            self._engine.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_engine(settings: WorkerSettings, device: str) -> Engine:
    """Return the engine for the worker's settings. Raises UserError."""
    if device == "cpu":
        NetworkRequest(precision=settings.precision).reject_gpu_options()
    fed = FeedingOptions(settings.logits, settings.compressed)
    return open_engine(settings.graph, Choices(settings.precision), device=device, dtype=settings.dtype, fed=fed)


AHEAD = 4  # pieces at least in flight, so that feeders go on while a shard's results are written
POLL_SECONDS = 0.1  # between two checks for Ctrl-C


class LocalRunner:
    """Classify several pieces (ranges of images) at a time on one worker of this process.

    Small and compressed pieces keep few of the reading threads busy, so more of these pieces run at a time.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._running: dict[Future[PieceResult | PieceFault], Piece] = {}
        self._finished: deque[tuple[Piece, Future[PieceResult | PieceFault]]] = deque()

    def run(self, pieces: Iterable[Piece]) -> Answers:
        """Classify pieces; yield each with its result as it completes. Closing the generator also closes the worker."""
        waiting = iter(pieces)
        most = max(2 * self._worker.device_info.lanes, AHEAD)
        with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(most) as pool:
            try:
                while True:
                    while len(self._running) < most and self._has_room() and (piece := next(waiting, None)) is not None:
                        self._running[pool.submit(self._worker.classify, piece)] = piece
                    if self._finished:
                        piece, future = self._finished.popleft()
                        yield piece, future.result()
                    elif not self._running:
                        return
                    self._collect_finished()
                    check_interrupt()
            except BaseException:
                self._worker.close()  # or the pool would wait for the pieces in flight
                raise

    def _has_room(self) -> bool:
        """Return whether another piece may start: neither pieces in flight nor results hold too many images."""
        if sum(piece.count for piece, _ in self._finished) > GPU_PIECE:
            return False
        running = self._running.values()
        images = sum(0 if piece.shard.is_sequential else piece.count for piece in running)
        return len(running) < AHEAD or images < GPU_PIECE

    def _collect_finished(self) -> None:
        """Move finished pieces from ``_running`` to ``_finished``; if both have none, wait briefly for one."""
        if self._running:
            done, _ = wait(self._running, 0 if self._finished else POLL_SECONDS, FIRST_COMPLETED)
            self._finished.extend((self._running.pop(future), future) for future in done)
