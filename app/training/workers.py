"""Run the processes of ``train --workers N``. Rank 0, the command's process, starts, supervises and ends the others.

Only rank 0 prints and writes. Workers run the same loop silently and end with rank 0, however that ends. If a worker
ends too early, the training ends with an error of one line.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from typing import Any

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.processes import CHECK_SECONDS, StopDetector, block_signals, describe_exit_code, end_with_parent
from app.training import loop
from app.training.checkpoint import TrainingJob
from app.training.cpu_trainer import open_trainer
from app.training.settings import Settings
from app.training.team import SharedMemoryTeam, SingleProcessTeam, Team, shared_memory_bytes

REASON_SECONDS = 2.0  # wait for the reason of a worker's end
END_SECONDS = 10.0  # wait for workers after the last epoch
GRACE = 10.0  # seconds for rank 0 to notice a worker's end, which it cannot while it waits for its GPU


def check_workers(count: int, settings: Settings, device: str) -> None:
    """Raise UserError unless ``count`` processes can share each batch on ``device``, ``cuda`` or ``cpu``."""
    batch = min(settings.batch, settings.images - settings.validation)
    if count > batch:
        raise UserError(f"--workers {count} is more than the {batch} images of a batch: use fewer")
    if device == "cuda" and count > 1:
        from app.training.gpu.nccl_team import check_nccl_gpus

        check_nccl_gpus(count)


@contextmanager
def start_team(count: int, job: TrainingJob, resume_hint: Callable[[], str]) -> Iterator[Team]:
    """Start ``count`` - 1 workers on the job and yield the team of rank 0. Raises UserError if a worker fails.

    resume_hint: returns the end of an error message, which says how to resume.
    """
    if count == 1:
        yield SingleProcessTeam()
        return
    try:
        memory = get_context("spawn").RawArray("b", shared_memory_bytes(count)) if job.device == "cpu" else None
        workers = _start_workers(count, memory)
    except OSError as error:
        raise UserError(f"cannot start {count} workers ({error.strerror}): use fewer --workers") from error
    supervisor = WorkerSupervisor(workers, resume_hint)
    supervisor.start()
    try:
        for worker in workers:
            worker.link.send(job)
        with _join_team(job, 0, count, [worker.link for worker in workers], memory) as team:
            yield team
        supervisor.workers_may_end.set()
        supervisor.join(END_SECONDS)  # the workers finish the same work and end by themselves
    except (EOFError, OSError, UserError) as error:  # perhaps because a worker ended
        supervisor.settled.wait(REASON_SECONDS)
        if supervisor.reason:
            raise UserError(supervisor.reason) from error
        raise
    finally:
        supervisor.end()


class WorkerProcess(Frozen):
    """A worker process. link: sends the job to it, then connects the team. errors: receives the reason of a failure."""

    rank: int
    process: BaseProcess
    link: Connection
    errors: Connection

    def early_exit_reason(self, count: int) -> str | None:
        """Return why the process ended too early; None if it did not. count: number of processes in the team."""
        code = self.process.exitcode
        if code == 0:
            return None
        name = f"worker {self.rank + 1} of {count}"
        with suppress(EOFError, OSError):
            return f"{name} failed: {self.errors.recv()}"
        return f"{name} {describe_exit_code(code)}: train again with fewer --workers"


class WorkerSupervisor(Thread):
    """Thread that supervises the workers: it waits for their end, and kills a suspended worker.

    workers_may_end: event that the caller sets when the work is done. settled: event that this thread sets when all
    workers have ended, or when one fails before the work is done; ``reason`` then says why. resume_hint: returns the
    end of an error message, which says how to resume; for errors that only this thread can report.
    """

    def __init__(self, workers: list[WorkerProcess], resume_hint: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.workers_may_end, self.settled = Event(), Event()
        self.reason = ""
        self._workers, self._resume_hint = workers, resume_hint

    def run(self) -> None:
        running: dict[Any, WorkerProcess] = {worker.process.sentinel: worker for worker in self._workers}
        detectors = {worker: StopDetector(worker.process.pid) for worker in self._workers}
        count = len(self._workers) + 1
        while running:
            for sentinel in wait(list(running), CHECK_SECONDS):
                worker = running.pop(sentinel)
                worker.process.join()
                self._report_failure(worker.early_exit_reason(count))
            for worker in running.values():
                if detectors[worker].check_stopped():
                    worker.process.kill()
                    self._report_failure(f"worker {worker.rank + 1} of {count} was stopped by a signal: train again")
        self.settled.set()

    def _report_failure(self, reason: str | None) -> None:
        if reason is not None and not self.reason and not self.workers_may_end.is_set():
            self.reason = reason
            self.settled.set()
            self._exit_if_hanging()

    def end(self) -> None:
        """Kill all running workers and wait for their end."""
        self.workers_may_end.set()
        self._kill_workers()
        self.join()
        for worker in self._workers:
            worker.link.close()
            worker.errors.close()

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.process.kill()

    def _exit_if_hanging(self) -> None:
        """End this process if it still runs after GRACE seconds: its GPU may wait for that of the ended worker."""
        if not self.workers_may_end.wait(GRACE):
            self._kill_workers()
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            with suppress(OSError):  # standard error may be closed
                os.write(2, f"error: {self.reason}{self._resume_hint()}\n".encode())
            os._exit(2)


def _start_workers(count: int, memory: Any) -> list[WorkerProcess]:
    context = get_context("spawn")  # a fork would copy threads' locks and the card's context
    workers: list[WorkerProcess] = []
    try:
        with block_signals():
            for rank in range(1, count):
                link, their_link = Pipe()
                errors, their_errors = Pipe(duplex=False)
                arguments = (os.getpid(), rank, count, their_link, their_errors, memory)
                process = context.Process(target=_run_worker, args=arguments, name=f"worker {rank + 1}", daemon=True)
                process.start()
                their_link.close()  # then the connection breaks when the worker ends
                their_errors.close()
                workers.append(WorkerProcess(rank, process, link, errors))
    except OSError:
        for worker in workers:
            worker.process.kill()
        raise
    return workers


def _run_worker(lead: int, rank: int, count: int, link: Connection, errors: Connection, memory: Any) -> None:
    """Run worker ``rank`` of ``count``. lead: process id of rank 0. link, errors: to rank 0. memory: for the sums."""
    end_with_parent(lead)
    try:
        job = link.recv()
        progress = job.progress
        with _join_team(job, rank, count, [link], memory) as team, open_trainer(job, team, lambda: None) as trainer:
            while len(progress.history) < job.settings.epochs:
                progress = loop.run_epoch(trainer, job.settings, progress, lambda *_: None)
    except loop.DivergedError:
        pass  # rank 0 detects it, too
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # rank 0 may have ended
            errors.send(" ".join(text.split()))
        sys.exit(1)


@contextmanager
def _join_team(job: TrainingJob, rank: int, count: int, links: list[Connection], memory: Any) -> Iterator[Team]:
    """Join the team of ``count`` as member ``rank``; yield the team. links: to other members. memory: for the sums."""
    if job.device == "cpu":
        yield SharedMemoryTeam(rank, count, links, memory)
        return
    from app.training.gpu.nccl_team import create_nccl_id, join_nccl_team

    if rank == 0:
        name = create_nccl_id()
        for link in links:
            link.send(name)
    else:
        name = links[0].recv()
    with join_nccl_team(rank, count, name) as team:
        yield team
