"""Define the options of ``main.py compare``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.files import checks
from app.terminal.console import argparse_type
from app.terminal.options import option, options
from app.terminal.output import Output

USAGE = """\
%(prog)s [options] BEFORE AFTER
       %(prog)s [options] BEFORE BEFORE... -- AFTER AFTER..."""
SEPARATOR = "--after"
BODY = "lab.compare.command"
EPILOG = """\
examples:
  python main.py --json before-1.json
      write a report; so before-2.json, after-1.json and so on, in turn
  python main.py compare before-*.json -- after-*.json
      what became slower or faster, row by row; five reports per side are good
  python main.py compare before-*.json -- after-*.json --fail-above 3%
      for CI: exit code 1 if a row became slower by over 3 %, beyond noise
  python main.py compare before-1.json after-1.json
      the same for two runs, which may differ though the program does not
  python main.py compare fp32.json fp16.json --ignore-settings

All files are JSON of one command: of the main job, bench, bench --peers, sweep
or train. compare refuses reports of different machines or settings. Changes
below 1 % are 'same'.

If the program did not change, compare finds a slower or faster row in at most
5 % of cases, however many rows there are. With several reports per side that
holds for the program: the intervals know how far its runs lie apart. With one
per side it holds for these two runs only: on a busy machine, runs of the same
program may lie 10 % apart. Then the verdict is 'slower run' or 'faster run',
and exit code 1 of --fail-above may mean a slow run: give CI several per side.
"""
FAILED = "a row became slower by over --fail-above"


def parse_percentage(text: str) -> float:
    """Return 3.0 for ``3%`` or ``3``. Raises ArgumentTypeError if it is no number from 0 to 1e6."""
    return float(
        argparse_type(
            lambda part: float(part.removesuffix("%")), "a percentage such as 3%", checks.number_check(0, 1e6)
        )(text)
    )


class CompareRequest(Frozen, kw_only=True):
    """Options of ``compare``: the JSON files before and after, and the slowdown that counts as a failure."""

    before: list[Path] = option(
        "JSON of the first run or runs; of two files without --, the second is AFTER",
        name="before",
        nargs="+",
        type=Path,
        metavar="BEFORE",
    )
    after: list[Path] | None = option(
        "JSON of the later runs, of the same command; a bare -- is short for it",
        name=SEPARATOR,
        nargs="+",
        type=Path,
        metavar="AFTER",
        twice="name the reports of a side in one list",
    )
    fail_above: float | None = option(
        "end with exit code 1 if a row became slower by over X percent", type=parse_percentage, metavar="X%"
    )
    ignore_settings: bool = option("compare reports of different machines or settings, too", False)
    output: Output = options(what="the comparison")
