"""Send pieces of work to a Dask cluster and return the answers. Dask's event loop runs in a separate thread."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError
from tqdm import tqdm

from app.base.errors import UserError
from app.base.processes import block_signals
from app.cluster.clusters import LocalWorker, configure_dask, connect_to_cluster, silence_dask_logging, start_cluster
from app.cluster.plugin import EnginePlugin, Opener, answer_pieces

IN_FLIGHT = 2  # tasks that each worker of this machine runs at the same time
# Least duration of a task, and the same for each worker: one process, the scheduler, handles the tasks of all.
TASK_SECONDS = 0.015
HANDLING_SECONDS = 0.005
COUNT_SECONDS = 5.0  # interval between counts of the workers
SILENT_SECONDS = 7.0  # without workers or an answer of the scheduler, until a note is printed
EMPTY_SECONDS = 60.0  # the same, until the run fails
END_SECONDS = 20.0
POLL_SECONDS = 0.1  # between two checks for Ctrl-C
Estimate = Callable[[Any], float]
Check = Callable[[], object]
Answers = list[tuple[Any, Any]]
Queue = SimpleQueue[Answers | BaseException]
GONE = "the scheduler is gone: start it and its workers again, then run this again with --resume"


def open_local_runner(
    opener: Opener, workers: Sequence[LocalWorker], in_flight: int = IN_FLIGHT, **options: Any
) -> AbstractContextManager[ClusterRunner]:
    """Start worker processes on this machine; return a context manager that yields a runner on them.

    opener: opens the engine in a process. in_flight: number of tasks that each process runs at the same time. options:
    ``estimate`` and ``check`` of ``ClusterRunner``. Raises UserError if the processes do not start.
    """
    plugin = EnginePlugin(opener, {worker.name: worker.cores for worker in workers})
    return ClusterRunner(start_cluster(workers, in_flight, plugin), plugin.name, **options).run_dask_thread()


def open_cluster_runner(opener: Opener, address: str, **options: Any) -> AbstractContextManager[ClusterRunner]:
    """Return a context manager that connects to the scheduler at ``address`` and yields a runner on its workers.

    Each thread of a worker runs one task at a time. opener: opens the engine on a worker. Raises UserError if the
    workers cannot be used. options: ``estimate`` and ``check`` of ``ClusterRunner``.
    """
    plugin = EnginePlugin(opener, {})
    return ClusterRunner(connect_to_cluster(address, plugin), plugin.name, **options).run_dask_thread()


class ClusterRunner:
    """Send pieces of work to the workers of a Dask cluster and yield their answers.

    A task consists of one or more pieces. Tasks reach Dask's thread through its event loop, and answers return through
    a queue, so that Ctrl-C cannot leave a lock held.
    """

    def __init__(
        self,
        cluster: AbstractAsyncContextManager[Client],
        name: str,
        estimate: Estimate = lambda piece: 1.0,
        check: Check = lambda: None,
    ) -> None:
        """Store the arguments. cluster: yields Dask's client. name: of the plugin that runs on the workers.

        estimate: returns roughly the seconds that a piece takes. check: called often by ``run``; may raise exceptions.
        """
        self._cluster, self._name = cluster, name
        self._estimate, self._check = estimate, check
        self._workers = self._threads = 0
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._error: BaseException | None = None  # what ended Dask's thread
        self._answering: set[asyncio.Task[None]] = set()
        self._client: Client
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._run_cluster())

    def run(self, pieces: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (piece, answer) for every piece as answers arrive. A piece is taken when a worker has room for it.

        Raises UserError if the work cannot go on, and any exception that an engine raised.
        """
        waiting, in_flight = self._group_into_tasks(pieces), 0
        queue: Queue = SimpleQueue()
        while True:
            # For each worker one task more than it runs at a time, so that it always has a next one.
            while in_flight < self._threads + self._workers and (task := next(waiting, None)) is not None:
                with suppress(RuntimeError):  # Dask's thread has ended: ``_wait_for_entry`` raises the reason
                    self._loop.call_soon_threadsafe(self._start_task, task, queue)
                in_flight += 1
            if not in_flight:
                return
            answers = self._wait_for_entry(queue)
            if isinstance(answers, BaseException):
                raise answers
            in_flight -= 1
            yield from answers

    def _wait_for_entry(self, queue: SimpleQueue[Any]) -> Any:
        """Wait for the next entry of the queue and return it. If Dask's thread has failed, raise its exception."""
        while True:
            with suppress(Empty):
                return queue.get(timeout=POLL_SECONDS)
            self._check()
            if self._error is not None:
                raise self._error

    @contextmanager
    def run_dask_thread(self) -> Iterator[ClusterRunner]:
        """Open the cluster and run Dask's event loop in a thread while the block runs; yield this object."""
        thread = Thread(target=self._run_event_loop, name="Dask", daemon=True)
        with block_signals():  # inherited by Dask's threads and processes
            thread.start()
        try:
            self._wait_for_entry(self._ready)
            yield self
        finally:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._main.cancel)
            thread.join(END_SECONDS)

    def _run_event_loop(self) -> None:
        """Run Dask's event loop until the work ends; this is the target of Dask's thread."""
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, [signal.SIGTERM]
        )  # by which Python ends child processes that are left
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._loop.close()

    async def _run_cluster(self) -> None:
        configure_dask()
        silence_dask_logging()
        try:
            async with self._cluster as self._client:
                try:
                    await self._poll_worker_count()
                finally:
                    for task in self._answering:
                        task.cancel()
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError | TimeoutError):  # as Dask raises them
                raise UserError(GONE) from error
            raise UserError(f"the work through Dask ends: {error}; free some room, then go on by --resume") from error

    async def _poll_worker_count(self) -> None:
        """Count the workers regularly, because workers join and leave a running cluster.

        Print a note when there are no workers or the scheduler does not answer; raise UserError if that lasts.
        """
        last, noted = self._loop.time(), False
        counting = asyncio.ensure_future(self._client.scheduler.ncores())
        try:
            while True:
                await asyncio.wait({counting}, timeout=COUNT_SECONDS)
                threads: dict[str, int] = counting.result() if counting.done() else {}
                silent = self._loop.time() - last
                wrong = "all workers have ended" if counting.done() else "the scheduler does not answer"
                if threads:
                    last, noted = self._loop.time(), False
                elif silent > EMPTY_SECONDS:
                    raise UserError(f"{wrong}, for {silent:.0f} s now: see why, then go on by --resume")
                elif silent > SILENT_SECONDS and not noted:
                    noted = True
                    tqdm.write(f"note: {wrong}: waiting for {EMPTY_SECONDS - silent:.0f} s more", sys.stderr)
                if counting.done():
                    self._workers, self._threads = max(1, len(threads)), max(1, sum(threads.values()))
                    self._ready.put(None)
                    await asyncio.sleep(COUNT_SECONDS)
                    counting = asyncio.ensure_future(self._client.scheduler.ncores())
        finally:
            counting.cancel()

    def _group_into_tasks(self, pieces: Iterable[Any]) -> Iterator[list[Any]]:
        """Group consecutive pieces into tasks that last long enough to hide the cost of sending them."""
        task: list[Any] = []
        seconds = 0.0
        for piece in pieces:
            task.append(piece)
            seconds += self._estimate(piece)
            if seconds >= max(TASK_SECONDS, HANDLING_SECONDS * self._workers):
                yield task
                task, seconds = [], 0.0
        if task:
            yield task

    def _start_task(self, pieces: list[Any], queue: Queue) -> None:
        task = self._loop.create_task(self._submit_and_wait(pieces, queue))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _submit_and_wait(self, pieces: list[Any], queue: Queue) -> None:
        found: Answers | BaseException
        try:
            found = list(
                zip(pieces, await self._client.submit(answer_pieces, self._name, pieces, pure=False), strict=True)
            )
        except KilledWorker as error:
            deaths = error.allowed_failures + 1
            found = UserError(f"{pieces[0]}: {deaths} processes ended with it, in turn; does their memory suffice?")
        except (FutureCancelledError, CommClosedError):
            found = UserError(GONE)
        except Exception as error:
            found = error
        queue.put(found)
