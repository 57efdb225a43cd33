"""Watching over the processes that train together with this one: if one ends before its time, all do, and say why."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from typing import Any

GRACE = 10.0  # seconds that the lead has to find out by itself; it cannot while it waits for its card


@dataclass(frozen=True)
class Follower:
    """A process started by this one, the lead."""

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
        with suppress(EOFError, OSError):
            return f"{name} failed: {self.words.recv()}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({signal.strsignal(-code)}), perhaps for want of memory"
            return f"{name} was ended {how}: train again with fewer --workers"
        return f"{name} ended with exit code {code}: train again with fewer --workers"


class Watch(Thread):
    """Waits for the workers' ends.

    over: set it when they may end. settled: set when all have ended, or one has before its time; ``reason`` then says
    why. kept: called where only this thread can say it, for what to add about what is not lost.
    """

    def __init__(self, followers: list[Follower], kept: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.over, self.settled = Event(), Event()
        self.reason = ""
        self._followers, self._kept = followers, kept

    def run(self) -> None:
        running: dict[Any, Follower] = {follower.process.sentinel: follower for follower in self._followers}
        while running:
            for sentinel in wait(list(running)):
                follower = running.pop(sentinel)
                follower.process.join()
                reason = follower.reason(len(self._followers) + 1)
                if reason is not None and not self.reason and not self.over.is_set():
                    self.reason = reason
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
            with suppress(OSError):  # nobody may be there to read it
                os.write(2, f"error: {self.reason}{self._kept()}\n".encode())
            os._exit(2)
