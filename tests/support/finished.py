"""Remember which parts of long checks are finished, so that the next call goes on behind them."""

import argparse
import hashlib
import os
import sys
from pathlib import Path

from app.cuda.device import describe_gpu, why_no_gpu

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "finished"  # make clean removes it


class Finished:
    """Names of what a program has finished for these files, this Python and this GPU, in a file of the folder.

    again: forget them.
    """

    def __init__(self, program: str, folder: Path, *, again: bool = False, root: Path = ROOT) -> None:
        self.path = folder / f"{program}-{tree_digest(root)}.txt"
        if again:
            self.path.unlink(missing_ok=True)

    def __contains__(self, name: str) -> bool:
        return self.path.exists() and name in self.path.read_text(encoding="utf-8").splitlines()

    def add(self, name: str) -> None:
        """Remember it, also if the program is killed in the next moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add where to remember it, and whether to forget."""
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--record", type=Path, default=FOLDER, metavar="DIR", help="of what is finished: where")


def tree_digest(root: Path) -> str:
    """Return a number for all that results depend on; of the tree all but what is hidden, built or compiled."""
    gpu = "none" if why_no_gpu() is not None else describe_gpu()["name"]
    digest = hashlib.sha256(f"{sys.version} {gpu}".encode())
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_made(name))
        for path in sorted(Path(folder, name) for name in names):
            if path.is_file():
                digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _is_made(name: str) -> bool:
    return name.startswith(".") or name in ("build", "__pycache__") or name.endswith(".egg-info")
