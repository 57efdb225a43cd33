"""One device of this process, ready to classify pieces of shards: it reads them, computes, and counts right answers.

An engine has lanes. A lane is one thread with buffers of its own, and on a GPU with a stream of its own: it takes the
next block of images of any piece in flight, reads it, and has the device classify it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import numpy as np

from app.classify.flights import Flight, Flights, Lane
from app.classify.pieces import Fault, Piece, Place, Result, count_right
from app.cuda import device as devices
from app.errors import UserError
from app.layers import Softmax
from app.network.graph import Graph
from app.planning.request import NetworkRequest
from app.runtime.cpu_run import check_network_options

JOIN_SECONDS = 3.0  # a lane that hangs longer, as in reading from a lost disk, ends with the process
_on_lost_cards: list[Engine] = []  # nothing there can be freed: CuPy would print an error for each try


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What an engine computes. It can be pickled, and opened in any process.

    graph: the network, for images of the shards' shape. dtype: that of the images, ``uint8`` or ``float32``. device:
    ``auto``, ``cuda`` (the current one) or ``cpu``. precision: as the option ``--precision``. logits: whether results
    have them. compressed: some shards are: every core then decompresses one. label: what the report calls the device;
    None: by its number, or its cores.
    """

    graph: Graph
    dtype: str
    device: str = "auto"
    precision: str = "auto"
    logits: bool = False
    compressed: bool = False
    label: str | None = None


class Lanes(Protocol):
    """The lanes of one device. size: images in a block."""

    count: int
    size: int

    def open(self, index: int) -> Callable[[Lane], None]:
        """Allocate what a lane needs, in its own thread; return the body of that thread: it runs until the end."""

    def place(self) -> Place:
        """Describe the device, once all lanes are open."""

    def close(self) -> None:
        """Free everything; no lane runs any more."""


class EngineClosedError(Exception):
    """The engine was closed while it classified."""


class Engine:
    """A device of this process. A context manager; any number of threads may call ``classify`` at the same time.

    place: what classifies. why_cpu: why ``auto`` took the CPU, in one line; else None. Raises UserError where the
    device cannot run the network.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._softmax = any(isinstance(step.layer, Softmax) for step in settings.graph.steps[-2:])
        device, self.why_cpu = devices.choose(settings.device)
        with devices.gpu_errors():
            self._lanes = _cpu_lanes(settings) if device == "cpu" else _gpu_lanes(settings)
            self._flights = Flights(self._lanes.size)
            self._bodies: list[Callable[[Lane], None]] = []  # with all that lanes hold, until ``close``
            self._opened = threading.Semaphore(0)
            self._threads = [
                threading.Thread(target=self._run, args=(index,), daemon=True) for index in range(self._lanes.count)
            ]
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                self._opened.acquire()
            if self._flights.ended is not None:
                self.close()
                raise self._flights.ended
            self.place = self._lanes.place()

    def _run(self, index: int) -> None:
        with self._flights.lane() as lane:
            try:
                body = self._lanes.open(index)
                self._bodies.append(body)
            except BaseException as error:
                self._flights.end(error)  # before ``__init__`` looks
                raise
            finally:
                self._opened.release()
            body(lane)

    def classify(self, piece: Piece) -> Result | Fault:
        """Read and classify the piece; return when all of it is done.

        A shard or labels that cannot be read are a ``Fault``. After an exception the engine is of no use.
        """
        try:
            with piece.shard.reader() as reader:
                flight = Flight(piece, reader, self._settings.graph.classes if self._settings.logits else None)
                with devices.gpu_errors():
                    self._flights.fly(flight)
                correct = None
                if piece.shard.labelled_by_piece:
                    classes = self._settings.graph.classes
                    correct = count_right(flight.labels, piece.shard, reader, piece.first, classes)
        except UserError as error:
            if self._flights.ended is not None:
                raise
            return Fault(str(error))
        if flight.logits is not None and self._softmax:
            with np.errstate(divide="ignore"):
                np.log(flight.logits, out=flight.logits)
        return Result(flight.labels, flight.logits, correct, self.place, flight.seconds)

    def close(self) -> None:
        """End what is still in flight, and free everything that no lane hangs on to."""
        closed = EngineClosedError("the engine was closed")
        self._flights.end(closed)
        deadline = monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0))
        if any(thread.is_alive() for thread in self._threads):
            self._flights.give_up()
        elif devices.card_is_lost(self._flights.ended or closed):
            _on_lost_cards.append(self)
        else:
            self._bodies.clear()
            self._lanes.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gpu_lanes(settings: EngineSettings) -> Lanes:
    """Make the lanes of a GPU; the imports load CuPy."""
    from app.classify.gpu_lanes import GpuLanes

    return GpuLanes(settings)


def _cpu_lanes(settings: EngineSettings) -> Lanes:
    from app.classify.cpu_lanes import CpuLanes

    check_network_options(NetworkRequest(precision=settings.precision))
    return CpuLanes(settings)
