"""Trust in the cache: other users could plant kernels there, which this program would run as its own."""

import os
import shlex
import stat
import sys
from pathlib import Path

_OWN = "set LENET_CACHE_DIR to a folder of your own"
_told: set[Path] = set()


def private_folder(folder: Path) -> None:
    """Make a folder of the cache and the missing folders above it, for this user alone, whatever the umask.

    Existing folders stay as they are. Raises OSError.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)  # another process may be doing the same


def why_untrusted(path: Path) -> str | None:
    """Why ``path``, a file in a folder of the cache, must not be read or written; None if it may be, or does not exist.

    Neither the file nor the two folders above it may belong to another user except root, or be writable by one.
    """
    reasons = (_reason(place) for place in (path.parent.parent, path.parent, path))
    return next((reason for reason in reasons if reason is not None), None)


def trusted(path: Path) -> bool:
    """Return whether ``why_untrusted`` gives no reason; a reason is printed on standard error, once for each folder."""
    reason = why_untrusted(path)
    if reason is not None and path.parent not in _told:
        _told.add(path.parent)
        print(f"note: going on without {path.parent}: {reason}", file=sys.stderr)
    return reason is None


def _reason(place: Path) -> str | None:
    try:
        status = place.stat()
    except OSError:
        return None  # it does not exist, or whoever reads it says what is wrong
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return None  # neither folder nor file: whoever reads it says so
    if status.st_uid not in (0, os.geteuid()):
        return f"{place} is another user's: {_OWN}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if status.st_mode & stat.S_ISVTX:  # as /tmp must be
            return f"other users can write to {place}: {_OWN}"
        name = shlex.quote(str(place))
        return f"other users can write to {place}: remove it, or run chmod -R go-w {name} if you trust what is in it"
    return None
