"""Runs cases: each must end, in time, with the reader's promised result or with one line for the user."""

import signal
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from app.base.errors import UserError

SECONDS = 5.0  # a case; the slowest take some hundredths
LONGEST_LINE = 3000


Pair = tuple[Callable[[Random], bytes], Callable[[Path], object]]


@dataclass(frozen=True)
class Target:
    """A reader under test.

    make: a folder to work in → ``generate`` and ``read``: a broken file's bytes, and what reads the file at a path,
    checks what it got and raises AssertionError or UserError. cases: how many the tests run.
    """

    name: str
    cases: int
    make: Callable[[Path], Pair]


class TooLate(BaseException):
    """A case's time is over."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TooLate within the block when its time is over. For the main thread."""

    def late(*_: Any) -> None:
        raise TooLate

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def verdict(read: Callable[[Path], object], path: Path) -> str | None:
    """What is wrong with how ``read`` meets the file; None if it meets it as it should."""
    try:
        with time_limit(SECONDS):
            read(path)
    except UserError as error:
        line = str(error)
        if "\n" in line or not line.isprintable() or not line:
            return f"an error that is not one printable line: {line!r}"
        return f"an error of {len(line)} characters: {line[:200]}" if len(line) > LONGEST_LINE else None
    except TooLate:
        return f"still running after {SECONDS} s"
    except Exception:
        return traceback.format_exc()
    return None


def linked(place: Path, path: Path) -> Path:
    """Make the place, where a reader looks, a link to the file; returns the folder it is in."""
    place.parent.mkdir(exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(path)
    return place.parent


@dataclass(frozen=True)
class Find:
    """A case that ended otherwise, and its file."""

    target: str
    index: int
    seed: int
    reason: str
    content: bytes

    def __str__(self) -> str:
        return f"{self.target}, seed {self.seed}, case {self.index}, {len(self.content)} bytes:\n{self.reason}"


def run(target: Target, folder: Path, seed: int, cases: range) -> Iterator[Find]:
    """The finds among these cases. A case is known by target, seed and index, whatever ran before it.

    Warnings are finds.
    """
    generate, read = target.make(folder)
    path = folder / "case"
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for index in cases:
            content = generate(Random(zlib.crc32(target.name.encode()) << 64 | seed << 32 | index))
            path.unlink(missing_ok=True)  # to cut it off instead would make ext4 write each case to the disk
            path.write_bytes(content)
            reason = verdict(read, path)
            if reason is not None:
                yield Find(target.name, index, seed, reason, content)
