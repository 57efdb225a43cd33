"""Lock files, and write files so that no other program sees an incomplete one."""

import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.base.errors import UserError

STALE_SECONDS = 3600.0  # an unfinished file of an ended process is removed if it has not changed for so long

_PREFIX, _SUFFIX = ".lenet5-inference-", ".part"
_OURS = re.compile(f"{re.escape(_PREFIX)}([1-9][0-9]{{0,6}})-[0-9a-f]{{16}}{re.escape(_SUFFIX)}")
_swept: set[Path] = set()
_NUMBERS = re.compile(r"\[\s+[-+.\deE]+(?:,\s+[-+.\deE]+)+\s+\]")  # contains a newline, which no JSON string does


def temporary_path_beside(path: Path) -> Path:
    """Return a new name in the folder of ``path`` for an unfinished file; it contains this process's id.

    The first call for a folder also removes the unfinished files that killed processes left there.
    """
    _remove_abandoned_files(path.parent.absolute())
    return path.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}")


def _remove_abandoned_files(folder: Path) -> None:
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):  # the path may be gone, or belong to another user
                if not is_abandoned(path):
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def is_abandoned(path: Path) -> bool:
    """Return whether this program may remove the path: an unfinished file of a process that has ended.

    The file must also be unchanged for ``STALE_SECONDS``, because its process may run on another machine or in another
    container. Raises OSError.
    """
    owner = _OURS.fullmatch(path.name)
    if owner is None or _is_process_running(int(owner[1])):
        return False
    return time.time() - path.lstat().st_mtime > STALE_SECONDS


def _is_process_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process belongs to another user
    return True


@contextmanager
def replace_atomically(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same directory; when the block ends, rename it to ``path``, atomically.

    The content reaches the disk before the name does: after a power failure, either the old file or the new one is
    there, complete. If the block raises any exception, KeyboardInterrupt included, the temporary file is removed and
    ``path`` is unchanged. An existing file keeps its permissions and the links to it.

    Raises UserError, which names ``path``, for an OSError here or in the block, and if ``path`` is a folder, a device
    or anything but a file. Without ``overwrite``, also raises UserError if ``path`` exists when the block ends.
    """
    if overwrite:
        path = Path(os.path.realpath(path))
    temporary = temporary_path_beside(path)
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is not a regular file")
        yield temporary
        rename_unfinished(temporary, path, overwrite=overwrite)
    except OSError as error:
        raise unwritable_error(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def rename_unfinished(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Flush the file ``temporary``, beside ``path``, to the disk, and rename it to ``path``. Raises OSError."""
    if overwrite and path.exists():
        temporary.chmod(stat.S_IMODE(path.stat().st_mode))
    _flush_to_disk(temporary)
    if overwrite:
        temporary.replace(path)
    else:
        _rename_without_overwriting(temporary, path)
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot flush folders
        _flush_to_disk(path.parent)


def unwritable_error(path: Path, error: OSError) -> UserError:
    """Return the UserError for a file that cannot be written because of ``error``."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space, or choose another disk" if full else "choose a path that you can write to"
    return UserError(f"cannot write {path}: {error.strerror or error}; {remedy}")


def _flush_to_disk(path: Path) -> None:
    """Wait until the file or folder has been written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_without_overwriting(old: Path, new: Path) -> None:
    """Rename ``old`` to ``new``; raise FileExistsError if ``new`` exists. Atomic if the file system has hard links."""
    try:
        new.hardlink_to(old)  # the caller removes the old name
    except FileExistsError:
        raise
    except OSError:  # as on FAT
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        old.rename(new)


@contextmanager
def hold_lock(path: Path, busy_message: Callable[[str], str], remedy: str) -> Iterator[None]:
    """Hold a lock on the file ``path`` while the ``with`` block runs; remove the file at the end.

    The system releases the locks of a process however it ends, so a file that a crash left locks nothing. On a file
    system without locks there is no protection. busy_message: returns the text of the error from the id of the process
    that holds the lock. Raises UserError with that text, or with ``remedy`` if the file cannot be written.
    """
    try:
        descriptor = _acquire_lock_file(path, busy_message)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; {remedy}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)  # after the removal, because another process could lock a file that is about to go


def check_unlocked(path: Path, busy_message: Callable[[str], str]) -> None:
    """Raise UserError with ``busy_message(process id)`` if a process holds the lock file ``path``. Creates no file."""
    with suppress(OSError):  # there is no such file, or nobody may hold it
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _lock_descriptor(descriptor, busy_message)
        finally:
            os.close(descriptor)  # closing also unlocks


def _lock_descriptor(descriptor: int, busy_message: Callable[[str], str]) -> None:
    """Lock an open lock file. Raises UserError if another process holds it, OSError if its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        raise UserError(busy_message(other)) from None


def _acquire_lock_file(path: Path, busy_message: Callable[[str], str]) -> int:
    """Open and lock the file ``path``; return its descriptor. Raises UserError if another process holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _lock_descriptor(descriptor, busy_message)
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
        os.close(descriptor)  # the process that held the lock has removed the file meanwhile


def json_text(document: Mapping[str, object]) -> str:
    """Return the document as indented JSON, with each list of numbers in one line, and null for NaN and infinity."""
    text = json.dumps(_replace_nonfinite_numbers(document), indent=2, allow_nan=False) + "\n"
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)


def _replace_nonfinite_numbers(value: Any) -> Any:
    """Return the JSON value with null in place of each NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
