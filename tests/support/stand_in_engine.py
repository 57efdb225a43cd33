"""An engine for tests of app/cluster: it answers a number by its square, and does what the number's piece asks for."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.errors import UserError


class CUDARuntimeError(Exception):
    """As CuPy's: known by its name and its status."""

    status = 719


@dataclass(frozen=True)
class Piece:
    """deed: what happens in the process that takes it. once: a file; where it exists, nothing happens any more."""

    number: int
    deed: str = ""
    once: Path | None = None
    weight: float = 1.0

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
        if piece.deed and not (piece.once and piece.once.exists()):
            if piece.once:
                piece.once.touch()
            _do(piece.deed)
        time.sleep(0.002)
        variable, cores = os.environ.get("STAND_IN"), frozenset(os.sched_getaffinity(0))
        return Answer(np.full(1000, piece.number**2), os.getpid(), name, variable, cores)

    yield work


@contextmanager
def open_nothing(name: str | None) -> Iterator[Callable[[Piece], Answer]]:
    raise UserError("no GPU here")
    yield


def _do(deed: str) -> None:
    if deed == "exit":
        sys.exit(5)
    if deed == "lost":
        raise CUDARuntimeError("cudaErrorLaunchFailure")
    if deed == "bug":
        raise ValueError("a bug")
    os.kill(os.getpid(), getattr(signal, deed))
