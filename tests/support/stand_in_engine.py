"""Provide an engine for tests of app/cluster that answers a piece's number by its square and performs its deed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from app.base.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A piece of work. deed: what happens to the process that takes the piece. seconds: its stated duration."""

    number: int
    deed: str = ""
    seconds: float = 1.0

    def __str__(self) -> str:
        return f"piece {self.number}"


@dataclass(frozen=True)
class Answer:
    square: np.ndarray
    pid: int
    name: str | None
    variable: str | None
    cores: frozenset[int]


@contextmanager
def open_engine(name: str | None) -> Iterator[Callable[[Piece], Answer]]:
    def work(piece: Piece) -> Answer:
        if piece.deed == "bug":
            raise ValueError("a bug")
        if piece.deed:
            os.kill(os.getpid(), getattr(signal, piece.deed))
        time.sleep(0.002)
        variable, cores = os.environ.get("STAND_IN"), frozenset(os.sched_getaffinity(0))
        return Answer(np.full(1000, piece.number**2), os.getpid(), name, variable, cores)

    yield work


@contextmanager
def open_nothing(name: str | None) -> Iterator[Callable[[Piece], Answer]]:
    raise UserError("no GPU here")
    yield
