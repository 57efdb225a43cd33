"""Find the cache directory, create it, and decide whether to trust its files: other users must not provide kernels."""

import os
import shlex
import stat
from pathlib import Path

from app.base.errors import UserError, print_to_stderr
from app.files.writing import replace_atomically

_REMEDY = "set LENET_CACHE_DIR to a folder of your own"
_reported: set[Path] = set()  # folders that ``is_trusted`` has printed


def cache_dir() -> Path:
    """Return the user's cache directory for data and compiled kernels: absolute, and perhaps not existing yet.

    It is ``$LENET_CACHE_DIR`` if set, else ``$XDG_CACHE_HOME/lenet5-inference``, else ``~/.cache/lenet5-inference``.
    Raises UserError if the home directory is unknown.
    """
    own = os.environ.get("LENET_CACHE_DIR", "")
    shared = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if own:
            return Path(own).expanduser().absolute()
        # The XDG rule: a relative path is invalid and ignored.
        base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        message = "cannot tell where your home directory is; set LENET_CACHE_DIR to a directory that you can write to"
        raise UserError(message) from error
    return base / "lenet5-inference"


def create_private_folder(folder: Path) -> None:
    """Create a folder of the cache and its missing parents with access for this user only, whatever the umask is.

    Existing folders are not changed. Raises OSError.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)  # another process may be doing the same


def why_untrusted(path: Path) -> str | None:
    """Return why the program must not use ``path``, a file of the cache; None if it may, or if the file does not exist.

    The file and the two folders above it must belong to this user or root, and no other user may write to them.
    """
    reasons = map(_owner_or_mode_fault, (path.parent.parent, path.parent, path))
    return next((reason for reason in reasons if reason is not None), None)


def is_trusted(path: Path) -> bool:
    """Return whether the program may use ``path``, a file of the cache; if not, print why, once for each folder."""
    reason = why_untrusted(path)
    if reason is not None and path.parent not in _reported:
        _reported.add(path.parent)
        print_to_stderr(f"note: going on without {path.parent}: {reason}")
    return reason is None


def write_private_file(path: Path, text: str) -> None:
    """Write a file of the cache for this user only, atomically.

    Raises UserError if it cannot be written, or if another user could write to its folder.
    """
    if (reason := why_untrusted(path)) is not None:
        raise UserError(f"cannot store the results: {reason}")
    try:
        create_private_folder(path.parent)
    except OSError as error:
        raise UserError(
            f"cannot create {path.parent}: set LENET_CACHE_DIR to a folder that you can write to"
        ) from error
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o600)


def _owner_or_mode_fault(path: Path) -> str | None:
    try:
        status = path.stat()
    except OSError:
        return None  # the path does not exist, or its reader reports the fault
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return None  # neither folder nor file, which its reader reports
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} is another user's: {_REMEDY}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if status.st_mode & stat.S_ISVTX:  # such as /tmp
            return f"other users can write to {path}: {_REMEDY}"
        name = shlex.quote(str(path))
        return f"other users can write to {path}: remove it, or run chmod -R go-w {name} if you trust what is in it"
    return None
