"""The cache, Fashion-MNIST and the shipped weights: where they are, and whether they can be used."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.base.errors import UserError
from app.files import shipped
from app.files.cache import why_untrusted
from app.files.writing import cache_dir
from app.records.operate import Finding
from app.terminal.text import format_bytes
from app.tools.cache import contents
from app.tools.machine import finding
from data_tools.fashion_mnist import SPLITS, copies, search_dirs

AREA: Final = "files"


def storage() -> Iterator[Finding]:
    """The cache and its rights, data and weights. Nothing is written and nothing fetched."""
    folder = cache_dir()
    yield _cache(folder)
    with suppress(UserError):  # then the line above has the reason
        for about, _ in contents():
            yield finding(AREA, about["kind"], f"{about['files']:,} files, {format_bytes(about['bytes'])}")
    for split, files in SPLITS.items():
        where = [place for place in search_dirs(None) if all(copies(file, place) for file in files)]
        if where:
            yield finding(AREA, f"{split} images", str(where[0]))
        else:
            needed = {"test": "the main job and accuracy", "train": "train"}[split]
            remedy = f"python -m data_tools fetch --split {split}; the first use fetches it, too"
            yield finding(AREA, f"{split} images", "are not here yet", needed, remedy)
    yield _weights()


def _cache(folder: Path) -> Finding:
    existing = next(place for place in (folder, *folder.parents) if os.access(place, os.F_OK))  # exists() may raise
    reason = why_untrusted(folder / "kernels" / "any.cubin")
    if reason is None and not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} cannot be written to: set LENET_CACHE_DIR to a folder of your own"
    if reason is not None:
        fault, _, remedy = reason.rpartition(": ")
        return finding(AREA, "cache", f"{folder}: {fault}", "keeping compiled kernels and data", remedy)
    rights = f"mode {existing.stat().st_mode & 0o7777:o}" if existing == folder else "does not exist yet"
    return finding(AREA, "cache", f"{folder}, {rights}, {format_bytes(shutil.disk_usage(existing).free)} free there")


def _weights() -> Finding:
    """Compare the shipped weights with SHA256SUMS."""
    try:
        names = sorted(shipped.checksums(shipped.FOLDER))
        for name in names:
            path = shipped.FOLDER / name
            shipped.check(path, path.read_bytes())
    except (UserError, OSError) as error:
        return finding(AREA, "weights", str(error), "the shipped networks", "git checkout -- weights")
    return finding(AREA, "weights", f"{shipped.FOLDER}: {len(names)} files, all as in {shipped.CHECKSUMS}")
