"""What lies in the cache: compiled kernels, data, tuning tables. Removes only files that this program wrote there."""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.base.errors import UserError
from app.files.cache import why_untrusted
from app.files.writing import cache_dir, is_abandoned
from app.records.operate import CachedFiles
from data_tools.fashion_mnist import SPLITS


@dataclass(frozen=True)
class Kind:
    """Files of one kind. folder: within the cache. names: those that are ours. made_again: so that they may go."""

    name: Literal["compiled kernels", "Fashion-MNIST", "tuning tables"]
    folder: str
    names: re.Pattern[str]
    made_again: bool


DATA = "|".join(re.escape(file.name) for files in SPLITS.values() for file in files)
KINDS = (
    Kind("compiled kernels", "kernels", re.compile(r"[0-9a-f]{64}\.cubin"), made_again=True),
    Kind("Fashion-MNIST", "fashion-mnist", re.compile(rf"(?:{DATA})(?:\.gz)?"), made_again=True),
    Kind("tuning tables", "tuning", re.compile(r"\w+\.json"), made_again=False),  # measured by the user
)


@dataclass(frozen=True)
class Content:
    """The files of one kind. oldest, newest: seconds since their last changes; None without files."""

    kind: Kind
    paths: tuple[Path, ...]
    nbytes: int
    oldest: float | None
    newest: float | None

    @property
    def document(self) -> CachedFiles:
        """The entry in the JSON document."""
        return {
            "kind": self.kind.name,
            "folder": self.kind.folder,
            "files": len(self.paths),
            "bytes": self.nbytes,
            "oldest_s": self.oldest,
            "newest_s": self.newest,
        }


def contents() -> list[Content]:
    """Return what each kind has in the cache. Raises UserError for a folder that cannot be read."""
    found, now = [], time.time()
    for kind in KINDS:
        files = dict(_ours(kind))
        ages = [max(now - status.st_mtime, 0.0) for status in files.values()]
        nbytes = sum(status.st_size for status in files.values())
        found.append(Content(kind, (*files,), nbytes, max(ages, default=None), min(ages, default=None)))
    return found


def _ours(kind: Kind) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files of a kind, and those that processes left unfinished when they ended."""
    folder = cache_dir() / kind.folder
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; check its permissions") from None
    for path in paths:
        with suppress(OSError):  # another process may remove it meanwhile
            if kind.names.fullmatch(path.name) or is_abandoned(path):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def clear() -> list[Content]:
    """Remove the files that are made again when they are needed; return what was removed. Raises UserError."""
    removed = [content for content in contents() if content.kind.made_again]
    for content in removed:
        for path in content.paths:
            if (reason := why_untrusted(path)) is not None:
                raise UserError(f"cannot clear the cache: {reason}")
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"cannot remove {path}: {error.strerror}; check its permissions") from None
    return removed
