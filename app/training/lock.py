"""Keep other trainings from writing the same files, by a lock file beside each file that a training will write."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from app.errors import UserError


@contextmanager
def alone(*places: Path) -> Iterator[None]:
    """Hold the locks of these files while the block runs; every training calls this before it writes.

    Raises UserError, naming the other process, if one is held. The system releases the locks of a process however it
    ends, so a lock file that a crash leaves does not block. A file system without locks gives no protection.
    """
    with ExitStack() as held:
        for real, place in {os.path.realpath(place): place for place in places}.items():
            held.enter_context(_locked(Path(real), place))
        yield


@contextmanager
def _locked(real: Path, place: Path) -> Iterator[None]:
    path = real.with_name(f".{hashlib.sha256(os.fsencode(real.name)).hexdigest()[:16]}.lock")  # the name may be long
    try:
        descriptor = _acquired(path, place)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another --output") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)  # last: whoever waits to open it would hold a file that is about to be removed


def _acquired(path: Path, place: Path) -> int:
    """Open and lock the lock file ``path``; returns its descriptor. Raises UserError if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"process {other} is training into {place}: wait for its end, or name another --output"
            ) from None
        except OSError:  # this file system has no locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        os.close(descriptor)  # the process that held it has removed it meanwhile
