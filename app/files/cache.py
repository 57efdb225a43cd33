"""Whether what lies in the cache can be believed: other users could plant kernels there, which would be run as ours."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path

_OWN = "set LENET_CACHE_DIR to a folder of your own"
_told: set[Path] = set()


def private_folder(folder: Path) -> None:
    """Make a folder of the cache, and what is missing above it, for this user alone, whatever the umask.

    Folders that are there stay as they are. Raises OSError.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)  # another process may be doing the same


def why_untrusted(path: Path) -> str | None:
    """Why ``path``, a file in a folder of the cache, is not to be believed or written; None if it is, or is not there.

    Neither it nor the two folders may be another user's, root's aside, or be writable by another user.
    """
    reasons = (_reason(place) for place in (path.parent.parent, path.parent, path))
    return next((reason for reason in reasons if reason is not None), None)


def trusted(path: Path) -> bool:
    """Whether ``why_untrusted`` has nothing to say; else that is said on standard error, once for each folder."""
    reason = why_untrusted(path)
    if reason is not None and path.parent not in _told:
        _told.add(path.parent)
        print(f"note: going on without {path.parent}: {reason}", file=sys.stderr)
    return reason is None


def _reason(place: Path) -> str | None:
    try:
        status = place.stat()
    except OSError:
        return None  # it is not there, or whoever reads it says what is wrong
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return None  # likewise
    if status.st_uid not in (0, os.geteuid()):
        return f"{place} is another user's: {_OWN}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if status.st_mode & stat.S_ISVTX:  # as /tmp must be
            return f"other users can write to {place}: {_OWN}"
        name = shlex.quote(str(place))
        return f"other users can write to {place}: remove it, or run chmod -R go-w {name} if you trust what is in it"
    return None
