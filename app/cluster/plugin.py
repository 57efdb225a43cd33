"""Define what runs on a Dask worker: a plugin that opens the engine once, and a task that sends pieces to it."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from socket import gethostname
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from distributed import WorkerPlugin, get_worker

from app.base.errors import UserError
from app.cluster.clusters import silence_dask_logging
from app.cuda.device import is_fatal_cuda_error

Engine = Callable[[Any], Any]
"""A function that computes the answer to a piece of work; several threads call it in parallel."""
Opener = Callable[[str | None], AbstractContextManager[Engine]]
"""A picklable function that opens a worker's engine.

Its argument is the name of a worker of the local cluster, or None on another cluster.
"""
MOST_AT_ONCE = 16  # small pieces in one task
GPU_LOST = 70  # exit code of a process whose GPU failed


class EnginePlugin(WorkerPlugin):
    """Dask plugin that opens the engine in a thread when a worker starts, and closes it when the worker ends.

    opener: opens the engine. cores: for a cluster of this machine, worker's name → cores it may use; () means all.
    """

    def __init__(self, opener: Opener, cores: Mapping[str, Sequence[int]]) -> None:
        self.name = f"lenet5-{uuid4().hex}"  # runs of several users may share a cluster
        self._opener, self._cores = opener, cores

    def setup(self, worker: Any) -> None:
        self._local = worker.name if worker.name in self._cores else None
        if self._local is not None:
            silence_dask_logging()
            if self._cores[self._local]:
                _pin_to_cores(self._cores[self._local])
        self._engine: Future[Engine] = Future()
        self._over = Event()
        # One thread opens and closes the engine.
        self._thread = Thread(target=self._run_engine, name="engine", daemon=True)
        self._thread.start()

    def _run_engine(self) -> None:
        try:
            with self._opener(self._local) as engine:
                self._engine.set_result(engine)
                self._over.wait()
        except BaseException as error:
            if not self._engine.done():
                self._engine.set_exception(error)

    def wait_for_engine(self) -> Engine:
        """Wait until the engine is open; return it, or raise the exception that opening it raised."""
        try:
            return self._engine.result()
        except UserError as error:
            raise UserError(f"{self._local or gethostname()}: {error}") from None

    async def teardown(self, worker: Any) -> None:
        self._over.set()
        await asyncio.to_thread(self._thread.join)


def answer_pieces(name: str, pieces: Sequence[Any]) -> list[Any]:
    """Return the engine's answers to pieces of work; Dask runs this as a task. name: of the plugin with the engine.

    After a fatal error of the GPU, end the process, in which all CUDA calls would fail: Dask then starts a new one.
    """
    try:
        engine = get_worker().plugins[name].wait_for_engine()
        if len(pieces) == 1:
            return [engine(pieces[0])]
        with ThreadPoolExecutor(min(len(pieces), MOST_AT_ONCE)) as pool:
            return list(pool.map(engine, pieces))
    except Exception as error:
        if is_fatal_cuda_error(error):
            os._exit(GPU_LOST)
        raise


def _pin_to_cores(cores: Sequence[int]) -> None:
    """Restrict all threads of this process, and those that they start later, to these cores."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)
