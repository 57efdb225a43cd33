"""Where the program keeps what it fetched or built, and how a file is written without half of it ever showing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.errors import UserError


def cache_dir() -> Path:
    """The user's cache directory (absolute; it need not exist): for data and compiled kernels alike.

    ``$LENET_CACHE_DIR``, else ``$XDG_CACHE_HOME/lenet5-inference``, else ``~/.cache/lenet5-inference``.
    """
    own = os.environ.get("LENET_CACHE_DIR", "")
    shared = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if own:
            return Path(own).expanduser().absolute()
        # The XDG rule: a relative path there is invalid and to be ignored.
        base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        message = "cannot tell where your home directory is; set LENET_CACHE_DIR to a directory that you can write to"
        raise UserError(message) from error
    return base / "lenet5-inference"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path in the same directory to write to; it becomes ``path`` when the block ends, atomically.

    The content is on the disk before the name is, so that a power failure leaves the old file or the new one, whole.
    If the block raises anything, KeyboardInterrupt included, what it wrote is removed and ``path`` stays
    as it was. An OSError, the block's own included, becomes a UserError that names ``path``; so does a ``path`` that is
    a folder, a device or anything else but a file, which must not become one.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is not a regular file")
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        with suppress(OSError):  # not every file system lets folders be flushed
            _flush(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; choose a place that you can write to") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _flush(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
