"""``make fuzz``: many more cases than the tests run, each known by its reader, its seed and its number.

python -m tests.fuzz --seed 7 --minutes 30 --target tuning; --cases 1 --first 343 runs one again.
"""

import argparse
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from app.files import hdf5_process
from app.terminal.console import Parser, number_type, run_guarded, whole_number_type
from tests.fuzz import hdf5, idx, interchange, networks, old_systems, tables
from tests.fuzz.harness import run

READERS = (idx, tables, networks, interchange, old_systems, hdf5)
TARGETS = {target.name: target for module in READERS for target in module.TARGETS}
ROUND = 500  # cases of a reader before it is the next one's turn
FOLDER = Path("build", "fuzz")


def main() -> int:
    """Run rounds over the readers until the time is over; 1 if there were finds, whose files are kept."""
    parser = Parser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--seed", type=whole_number_type(0, 2**32 - 1), default=int(time.time()), help="default: the time"
    )
    parser.add_argument("--cases", type=whole_number_type(1), default=ROUND, help="of each reader in a round")
    parser.add_argument("--first", type=whole_number_type(0, 2**32 - 1), default=0, help="number of the first case")
    parser.add_argument(
        "--minutes", type=number_type(0, 1e4), default=0.0, help="more rounds for so long (default: one)"
    )
    parser.add_argument("--target", choices=tuple(TARGETS), help="one reader only")
    options = parser.parse_args()
    hdf5_process.SECONDS = 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with hdf5_process.Reader() as reader:  # one process for all cases: to start one for each takes longer than a case
        hdf5_process.Reader = lambda: nullcontext(reader)  # type: ignore[assignment, misc, return-value]
        return rounds(options)


def rounds(options: argparse.Namespace) -> int:
    """Whether there were finds."""
    end, first, finds = time.monotonic() + 60 * options.minutes, options.first, 0
    while first == options.first or time.monotonic() < end:
        for name in [options.target] if options.target else TARGETS:
            with tempfile.TemporaryDirectory(dir=FOLDER.absolute()) as folder:
                for find in run(TARGETS[name], Path(folder), options.seed, range(first, first + options.cases)):
                    finds += 1
                    path = FOLDER / f"{name}.{options.seed}-{find.index}"
                    path.write_bytes(find.content)
                    print(f"{find}\n{path}")
        first += options.cases
    readers = 1 if options.target else len(TARGETS)
    print(f"{(first - options.first) * readers:,} cases, seed {options.seed}: {finds} finds")
    return int(finds > 0)


if __name__ == "__main__":
    sys.exit(run_guarded(main))
