"""Run all tests, none left out, in parts: ``python -m tests.parts`` (``make test-all``).

A part that passed is skipped by the next call, as long as no file of the tree changes. Tests that need the GPU for
themselves are the last part.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from app.cuda.device import describe_gpu, why_no_gpu
from app.terminal.console import Parser, run_guarded, whole_number_type

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "finished"  # make clean removes it
NOTHING_SELECTED = 5  # pytest's exit code if a part has no test


class Finished:
    """The names of a program's finished parts or checks, stored in the folder for this tree, Python and GPU.

    again: whether to forget them.
    """

    def __init__(self, program: str, folder: Path, *, again: bool = False, root: Path = ROOT) -> None:
        self.path = folder / f"{program}-{tree_digest(root)}.txt"
        if again:
            self.path.unlink(missing_ok=True)

    def __contains__(self, name: str) -> bool:
        return self.path.exists() and name in self.path.read_text(encoding="utf-8").splitlines()

    def add(self, name: str) -> None:
        """Store a name at once, so that it is kept if the program is killed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for ``Finished``."""
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--record", type=Path, default=FOLDER, metavar="DIR", help="of what is finished: where")


def tree_digest(root: Path) -> str:
    """Return a hash of Python, GPU and all files of the tree but hidden, built and compiled ones."""
    gpu = "none" if why_no_gpu() is not None else describe_gpu()["name"]
    digest = hashlib.sha256(f"{sys.version} {gpu}".encode())
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_generated(name))
        for path in sorted(Path(folder, name) for name in names):
            if path.is_file():
                digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _is_generated(name: str) -> bool:
    return name.startswith(".") or name in ("build", "__pycache__") or name.endswith(".egg-info")


def commands(count: int, paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each part, and pytest's arguments for it."""
    for part in range(1, count + 1):
        name = f"{part}/{count}"
        yield f"part {name}", ["-m", "not alone", "-n", "auto", "--dist", "worksteal", "--long", "--part", name, *paths]
    yield "last part", ["-m", "alone", *paths]


def run(count: int, paths: Sequence[str], finished: Finished) -> list[str]:
    """Run the parts that are not finished; return the names of those that failed."""
    failed = []
    for name, arguments in commands(count, paths):
        if (known := f"pytest {' '.join(arguments)}") in finished:
            print(f"{name}: passed before", flush=True)
            continue
        print(f"{name}: {known}", flush=True)
        begin = perf_counter()
        code = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=ROOT).returncode
        passed = code in (0, NOTHING_SELECTED)
        print(f"{name}: {'passed' if passed else 'FAILED'} in {perf_counter() - begin:.0f} s", flush=True)
        if passed:
            finished.add(known)
        else:
            failed.append(name)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m tests.parts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", type=whole_number_type(1), default=8, metavar="N", help="how many (default: 8)")
    add_options(parser)
    parser.add_argument("paths", nargs="*", help="files and folders of tests (default: all)")
    options = parser.parse_args(arguments)
    failed = run(options.parts, options.paths, Finished("parts", options.record, again=options.again))
    print(f"failed: {', '.join(failed)}; the next call runs only these" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
