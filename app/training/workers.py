"""The processes of ``train --workers N``: started, watched and ended by the command itself, which is the first of them.

The command leads: it alone prints and writes. The others run the same loop, silently, and end with it, whatever ends
it. If one of them ends before its time, the training does, with one line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from typing import Any

from app.errors import UserError
from app.training import loop
from app.training.job import Job
from app.training.recipes import Settings
from app.training.team import Alone, SharedMemoryTeam, Team, shared_bytes

PATIENCE = 2.0  # seconds until a worker's end has become known, after what it brought about
GRACE = 10.0  # seconds that the lead has to find out by itself; it cannot while it waits for its card


def check_workers(count: int, settings: Settings, device: str) -> None:
    """Raises UserError unless so many processes can share each batch, on ``cuda`` or ``cpu``."""
    batch = min(settings.batch, settings.images - settings.validation)
    if count > batch:
        raise UserError(f"--workers {count} is more than the {batch} images of a batch: use fewer")
    if device == "cuda" and count > 1:
        from app.training.gpu.nccl_team import check_cards

        check_cards(count)


@contextmanager
def team_of(count: int, job: Job, kept: Callable[[], str]) -> Iterator[Team]:
    """The lead's team, the job's other processes at work while the block runs. Raises UserError if one of them fails.

    kept: called then, for what to add about what is not lost.
    """
    if count == 1:
        yield Alone()
        return
    try:
        memory = get_context("spawn").RawArray("b", shared_bytes(count)) if job.device == "cpu" else None
        followers = _start(count, memory)
    except OSError as error:
        raise UserError(f"cannot start {count} workers ({error.strerror}): use fewer --workers") from error
    watch = _Watch(followers, kept)
    watch.start()
    try:
        for follower in followers:
            follower.link.send(job)
        with _member(job, 0, count, [follower.link for follower in followers], memory) as team:
            yield team
        watch.over.set()
        watch.join(GRACE)  # they have done the same and end by themselves
    except Exception as error:
        watch.settled.wait(PATIENCE)
        if watch.reason:
            raise UserError(watch.reason) from error
        raise
    finally:
        watch.end()


def follow(job: Job, team: Team) -> None:
    """Do as the lead does, to the training's end, and keep quiet about it. Raises loop.DivergedError when it does."""
    progress = job.progress
    with job.engine(team) as engine:
        while len(progress.history) < job.settings.epochs:
            progress = loop.run_epoch(engine, job.settings, progress, lambda *_: None)


@dataclass(frozen=True)
class _Follower:
    rank: int
    process: BaseProcess
    link: Connection  # for the job and the team
    words: Connection  # the last ones, of a worker that fails

    def reason(self, count: int) -> str | None:
        """Why it ended, if that was before its time."""
        code = self.process.exitcode
        if code == 0:
            return None
        name = f"worker {self.rank + 1} of {count}"
        with suppress(EOFError):
            return f"{name} failed: {self.words.recv()}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({signal.strsignal(-code)}), perhaps for want of memory"
            return f"{name} was ended {how}: train again with fewer --workers"
        return f"{name} ended with exit code {code}: train again with fewer --workers"


@contextmanager
def _member(job: Job, rank: int, count: int, links: list[Connection], memory: Any) -> Iterator[Team]:
    """This process's place in the team."""
    if job.device == "cpu":
        yield SharedMemoryTeam(rank, count, links, memory)
        return
    from app.training.gpu.nccl_team import nccl_team, unique_id

    if rank == 0:
        name = unique_id()
        for link in links:
            link.send(name)
    else:
        name = links[0].recv()
    with nccl_team(rank, count, name) as team:
        yield team


def _start(count: int, memory: Any) -> list[_Follower]:
    context = get_context("spawn")  # a fork would take threads' locks and the card's context with it
    resource_tracker.ensure_running()  # it would unblock the signal that is blocked next
    # Ctrl-C reaches every process of the terminal; only the lead may answer. A worker keeps what is blocked here.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    followers: list[_Follower] = []
    try:
        for rank in range(1, count):
            link, their_link = Pipe()
            words, their_words = Pipe(duplex=False)
            arguments = (rank, count, their_link, their_words, memory)
            process = context.Process(target=_work, args=arguments, name=f"worker {rank + 1}", daemon=True)
            process.start()
            their_link.close()  # so that the connection breaks when the worker ends
            their_words.close()
            followers.append(_Follower(rank, process, link, words))
    except OSError:
        for follower in followers:
            follower.process.kill()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return followers


def _work(rank: int, count: int, link: Connection, words: Connection, memory: Any) -> None:
    """A worker's life."""
    Thread(target=_end_with_lead, daemon=True).start()
    try:
        job = link.recv()
        with _member(job, rank, count, [link], memory) as team:
            follow(job, team)
    except loop.DivergedError:
        pass  # the lead finds out, too
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the lead may have gone
            words.send(" ".join(text.split()))
        sys.exit(1)


def _end_with_lead() -> None:
    """Whatever ended it, and whatever this process is waiting for."""
    lead = parent_process()
    if lead is not None:
        lead.join()
    os._exit(1)


class _Watch(Thread):
    """Waits for the workers' ends.

    over: set it when they may end. settled: set when all have ended, or one has before its time; ``reason`` then says
    why.
    """

    def __init__(self, followers: list[_Follower], kept: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.over, self.settled = Event(), Event()
        self.reason = ""
        self._followers, self._kept = followers, kept

    def run(self) -> None:
        running: dict[Any, _Follower] = {follower.process.sentinel: follower for follower in self._followers}
        while running:
            for sentinel in wait(list(running)):
                follower = running.pop(sentinel)
                follower.process.join()
                reason = follower.reason(len(self._followers) + 1)
                if reason is not None and not self.reason and not self.over.is_set():
                    self.reason = f"{reason}{self._kept()}"
                    self.settled.set()
                    self._last_resort()
        self.settled.set()

    def end(self) -> None:
        """End all that still run. Returns when they have."""
        self.over.set()
        self._kill()
        self.join()
        for follower in self._followers:
            follower.link.close()
            follower.words.close()

    def _kill(self) -> None:
        for follower in self._followers:
            follower.process.kill()

    def _last_resort(self) -> None:
        """The lead may wait for its card, which waits for that of the worker, for ever: end it from here."""
        if not self.over.wait(GRACE):
            self._kill()
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os.write(2, f"error: {self.reason}\n".encode())
            os._exit(2)
