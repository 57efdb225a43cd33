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
from multiprocessing import Pipe, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from app.errors import UserError
from app.interrupts import SIGNALS
from app.training import loop
from app.training.job import Job
from app.training.settings import Settings
from app.training.team import Alone, SharedMemoryTeam, Team, shared_bytes
from app.training.watch import Follower, Watch

PATIENCE = 2.0  # seconds in which a worker's end becomes known
FAREWELL = 10.0  # seconds that workers have to end after the last epoch


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

    kept: as for ``Watch``.
    """
    if count == 1:
        yield Alone()
        return
    try:
        memory = get_context("spawn").RawArray("b", shared_bytes(count)) if job.device == "cpu" else None
        followers = _start(count, memory)
    except OSError as error:
        raise UserError(f"cannot start {count} workers ({error.strerror}): use fewer --workers") from error
    watch = Watch(followers, kept)
    watch.start()
    try:
        for follower in followers:
            follower.link.send(job)
        with _member(job, 0, count, [follower.link for follower in followers], memory) as team:
            yield team
        watch.over.set()
        watch.join(FAREWELL)  # they have done the same and end by themselves
    except (EOFError, OSError, UserError) as error:  # which another's end may have brought about
        watch.settled.wait(PATIENCE)
        if watch.reason:
            raise UserError(watch.reason) from error
        raise
    finally:
        watch.end()


def follow(job: Job, team: Team) -> None:
    """Do as the lead does, to the training's end, and keep quiet about it. Raises loop.DivergedError when it does."""
    progress = job.progress
    with job.engine(team, lambda: None) as engine:
        while len(progress.history) < job.settings.epochs:
            progress = loop.run_epoch(engine, job.settings, progress, lambda *_: None)


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


def _start(count: int, memory: Any) -> list[Follower]:
    context = get_context("spawn")  # a fork would take threads' locks and the card's context with it
    resource_tracker.ensure_running()  # it would unblock the signals that are blocked next
    # Ctrl-C reaches every process of the terminal; only the lead may answer. A worker keeps what is blocked here.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    followers: list[Follower] = []
    try:
        for rank in range(1, count):
            link, their_link = Pipe()
            words, their_words = Pipe(duplex=False)
            arguments = (rank, count, their_link, their_words, memory)
            process = context.Process(target=_work, args=arguments, name=f"worker {rank + 1}", daemon=True)
            process.start()
            their_link.close()  # so that the connection breaks when the worker ends
            their_words.close()
            followers.append(Follower(rank, process, link, words))
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
