"""Lock files, by which one process keeps others from writing what it writes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.base.errors import UserError


@contextmanager
def locked(path: Path, busy: Callable[[str], str], remedy: str) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; it is removed at the end.

    The system releases the locks of a process however it ends, so a lock file left by a crash does not block. A file
    system without locks gives no protection.

    busy: builds the error for the number of the process that holds the lock. Raises UserError, with that error or,
    where the file cannot be written, with ``remedy``.
    """
    try:
        descriptor = _acquired(path, busy)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; {remedy}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)  # last: another process may otherwise open a file that is about to be removed


def check_unlocked(path: Path, busy: Callable[[str], str]) -> None:
    """Raise UserError, as ``locked`` does, if another process holds the lock file ``path`` now. Leaves no file."""
    with suppress(OSError):  # there is no such file, or nobody may hold it
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _lock(descriptor, busy)
        finally:
            os.close(descriptor)  # which unlocks it, too


def _lock(descriptor: int, busy: Callable[[str], str]) -> None:
    """Lock an open lock file. Raises UserError if another process holds it, OSError if its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        raise UserError(busy(other)) from None


def _acquired(path: Path, busy: Callable[[str], str]) -> int:
    """Open and lock the lock file ``path``; returns its descriptor. Raises UserError if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, busy)
        except UserError:
            os.close(descriptor)
            raise
        except OSError:  # this file system has no locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile
