"""Run all tests, none left out, in parts: ``python -m tests.parts`` (``make test-all``).

A part that passed is skipped by the next call, as long as no file of the tree changes. Tests that need the GPU for
themselves are the last part.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from app.terminal.console import Parser, guarded, whole_number
from tests.support.finished import Finished, add_options

ROOT = Path(__file__).parents[1]
NOTHING_SELECTED = 5  # pytest's exit code for a part without a test


def commands(count: int, paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each part, and pytest's arguments for it."""
    for part in range(1, count + 1):
        name = f"{part}/{count}"
        yield f"part {name}", ["-m", "not alone", "-n", "auto", "--dist", "worksteal", "--long", "--part", name, *paths]
    yield "last part", ["-m", "alone", *paths]


def run(count: int, paths: Sequence[str], finished: Finished) -> list[str]:
    """Run what is not finished; return the names of the parts that failed."""
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
    """The command; returns its exit code."""
    parser = Parser(prog="python -m tests.parts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", type=whole_number(1), default=8, metavar="N", help="how many (default: 8)")
    add_options(parser)
    parser.add_argument("paths", nargs="*", help="files and folders of tests (default: all)")
    options = parser.parse_args(arguments)
    failed = run(options.parts, options.paths, Finished("parts", options.record, again=options.again))
    print(f"failed: {', '.join(failed)}; the next call runs only these" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
