"""Hands pieces to a Dask cluster and brings back their answers. Dask lives in asyncio, in a thread of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from multiprocessing import resource_tracker
from queue import SimpleQueue
from threading import Thread
from typing import Any

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError
from distributed.scheduler import NoWorkerError

from app.cluster.local import LocalWorker, local_cluster
from app.cluster.plugin import EnginePlugin, Opener, answer
from app.cluster.remote import running_cluster
from app.cluster.settings import apply_defaults, quieten
from app.errors import UserError

IN_FLIGHT = 2
COUNT_SECONDS = 5.0  # how often the workers are counted again
END_SECONDS = 20.0
# Ctrl-C and a closed terminal reach every process of the terminal; only this one may react.
BLOCKED = (signal.SIGINT, signal.SIGHUP)
GONE = "the scheduler is gone: start it again, then run this again with --resume"


@contextmanager
def local_runner(opener: Opener, workers: Sequence[LocalWorker], in_flight: int = IN_FLIGHT) -> Iterator[Runner]:
    """Yield a runner on processes of this machine. in_flight: pieces that each works on at a time."""
    plugin = EnginePlugin(opener, {worker.name: worker.cores for worker in workers})
    with Runner(local_cluster(workers, in_flight, plugin), plugin.name, in_flight).running() as runner:
        yield runner


@contextmanager
def cluster_runner(opener: Opener, address: str, in_flight: int = IN_FLIGHT) -> Iterator[Runner]:
    """Yield a runner on the workers of the scheduler at ``address``. Raises UserError if they are of no use.

    in_flight: pieces that each worker should have; it works on as many at a time as it has threads.
    """
    plugin = EnginePlugin(opener, {})
    with Runner(running_cluster(address, plugin), plugin.name, in_flight).running() as runner:
        yield runner


class Runner:
    """Answers pieces on the workers of a cluster.

    Pieces go to Dask's thread by its event loop, and answers come back by a queue. Ctrl-C leaves no lock of them taken.
    """

    def __init__(self, cluster: AbstractAsyncContextManager[Client], name: str, in_flight: int) -> None:
        """name: of the plugin that the cluster's workers have."""
        self._cluster, self._name, self._in_flight = cluster, name, in_flight
        self._workers = 0
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()  # (piece, answer); (None, error) is the end
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Client
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._live())

    def run(self, pieces: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (piece, answer) of every piece, as they come. Takes a piece when there is room for one.

        Raises UserError if the work cannot go on, and whatever an engine raised.
        """
        waiting, in_flight = iter(pieces), 0
        while True:
            # A worker has one more than it works on, which it begins at once when another ends.
            while in_flight < self._workers * (self._in_flight + 1) and (piece := next(waiting, None)) is not None:
                self._loop.call_soon_threadsafe(self._begin, piece)
                in_flight += 1
            if not in_flight:
                return
            piece, result = self._answers.get()
            if piece is None:
                raise result
            in_flight -= 1
            yield piece, result

    @contextmanager
    def running(self) -> Iterator[Runner]:
        """Enter the cluster, and leave it at the end of the block."""
        resource_tracker.ensure_running()  # later it would unblock the signals that are blocked
        thread = Thread(target=self._serve, name="Dask", daemon=True)
        thread.start()
        try:
            error = self._ready.get()
            if error is not None:
                raise error
            yield self
        finally:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._main.cancel)
            thread.join(END_SECONDS)

    def _serve(self) -> None:
        """What Dask's thread does. Its threads and processes inherit the signals that are blocked here."""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._ready.put(error)
            self._answers.put((None, error))
        finally:
            self._loop.close()

    async def _live(self) -> None:
        apply_defaults()
        quieten()
        try:
            async with self._cluster as self._client:
                self._workers = await self._count()
                self._ready.put(None)
                try:
                    while True:
                        await asyncio.sleep(COUNT_SECONDS)
                        self._workers = await self._count()
                finally:
                    for task in self._tasks:
                        task.cancel()
        except OSError as error:
            raise UserError(GONE) from error

    async def _count(self) -> int:
        """Return the number of workers; at least 1, as those that died may come back."""
        found = await self._client.scheduler.identity(n_workers=0)
        return max(1, found["n_workers"])

    def _begin(self, piece: Any) -> None:
        task = self._loop.create_task(self._answer(piece))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, piece: Any) -> None:
        found: tuple[Any, Any]
        try:
            found = piece, await self._client.submit(answer, self._name, piece, pure=False)
        except KilledWorker as error:
            count = error.allowed_failures + 1
            found = None, UserError(f"{piece}: {count} processes in turn ended with it; does their memory suffice?")
        except NoWorkerError:
            found = None, UserError("no worker is left, and none could be started; does the memory suffice?")
        except FutureCancelledError:
            found = None, UserError(GONE)
        except Exception as error:
            found = None, error
        self._answers.put(found)
