"""The folder in which Dask's processes of this machine keep their files."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from time import time

PREFIX = "lenet5-cluster-"
YOUNG_SECONDS = 60.0  # a folder may be so new that its process has yet to lock it


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a new temporary folder; remove it at the end of the block, and now those of processes that were killed.

    A process locks its folder, and the system ends the lock with the process. Where there are no locks, nobody else
    removes a folder.
    """
    for left in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or just removed
            if time() - left.lstat().st_mtime > YOUNG_SECONDS:
                with _open(left) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rmtree(left)
    with TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder, _open(folder) as descriptor:
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


@contextmanager
def _open(folder: str | Path) -> Iterator[int]:
    # A pipe of such a name would block, a link lead elsewhere. Processes that start do not inherit the descriptor.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
