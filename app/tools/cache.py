"""Run ``main.py cache``: list the files that this program wrote into the cache, or remove them."""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.commands.cache import CacheRequest
from app.files.cache import cache_dir, why_untrusted
from app.files.writing import is_abandoned
from app.records.operate import Cache, CachedFiles
from app.terminal.output import publish_report
from app.terminal.text import Column, format_age, format_bytes, paragraph, table
from data_tools.fashion_mnist import SPLITS


class CacheKind(Frozen):
    """A kind of cached files. folder: its folder in the cache. names: pattern of file names.

    made_again: whether the program can create these files again; ``--clear`` removes only such files.
    """

    name: Literal["compiled kernels", "Fashion-MNIST", "tuning tables", "peer settings", "learn progress"]
    folder: str
    names: re.Pattern[str]
    made_again: bool


DATA = "|".join(re.escape(file.name) for files in SPLITS.values() for file in files)
KINDS = (
    CacheKind("compiled kernels", "kernels", re.compile(r"[0-9a-f]{64}\.cubin"), made_again=True),
    CacheKind("Fashion-MNIST", "fashion-mnist", re.compile(rf"(?:{DATA})(?:\.gz)?"), made_again=True),
    # measurements of the user
    CacheKind("tuning tables", "tuning", re.compile(r"\w+\.json"), made_again=False),
    CacheKind("peer settings", "peers", re.compile(r"\w+\.json"), made_again=False),
    # the user's exercises
    CacheKind("learn progress", "learn", re.compile(r"progress\.json"), made_again=False),
)
COLUMNS = [Column("kind", left=True), Column("files"), Column("size"), Column("age", left=True)]


def cache(request: CacheRequest) -> int:
    """List the cached files by kind, or remove those that the program can create again. Return 0. Raises UserError."""
    document: Cache = {
        "schema": "lenet5-inference/cache/1",
        "folder": str(cache_dir()),
        "cleared": request.clear,
        "kinds": clear_cache() if request.clear else [about for about, _ in cache_contents()],
    }
    publish_report(document, as_text, request.output)
    return 0


def as_text(document: Cache, width: int) -> str:
    """Return the list of files as text: a row for each kind."""
    kinds = document["kinds"]
    files, nbytes = sum(kind["files"] for kind in kinds), sum(kind["bytes"] for kind in kinds)
    what = "removed from" if document["cleared"] else "in"
    rows = [[kind["kind"], f"{kind['files']:,}", format_bytes(kind["bytes"]), _age_range(kind)] for kind in kinds]
    head = f"{files:,} files, {format_bytes(nbytes)} {what} {document['folder']}"
    return "\n".join([*paragraph(head, width), *table(COLUMNS, rows, width)])


def _age_range(kind: CachedFiles) -> str:
    ages = [format_age(age) for age in (kind["newest_s"], kind["oldest_s"]) if age is not None]
    return " to ".join(dict.fromkeys(ages))


def cache_contents() -> list[tuple[CachedFiles, list[Path]]]:
    """Return (entry of the JSON document, paths) for each kind of files. Raises UserError for an unreadable folder."""
    found, now = [], time.time()
    for kind in KINDS:
        files = dict(_cached_files(kind))
        ages = [max(now - status.st_mtime, 0.0) for status in files.values()]
        about: CachedFiles = {
            "kind": kind.name,
            "folder": kind.folder,
            "files": len(files),
            "bytes": sum(status.st_size for status in files.values()),
            "oldest_s": max(ages, default=None),
            "newest_s": min(ages, default=None),
        }
        found.append((about, [*files]))
    return found


def _cached_files(kind: CacheKind) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files of a kind, and unfinished files of processes that have ended."""
    folder = cache_dir() / kind.folder
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; check its permissions") from None
    for path in paths:
        with suppress(OSError):  # another process may remove the file meanwhile
            if kind.names.fullmatch(path.name) or is_abandoned(path):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def clear_cache() -> list[CachedFiles]:
    """Remove the files that the program can create again; return their number and size by kind. Raises UserError."""
    removed = [found for kind, found in zip(KINDS, cache_contents(), strict=True) if kind.made_again]
    for path in (path for _, paths in removed for path in paths):
        if (reason := why_untrusted(path)) is not None:
            raise UserError(f"cannot clear the cache: {reason}")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}; check its permissions") from None
    return [about for about, _ in removed]
