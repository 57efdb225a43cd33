"""Define the options of ``main.py rank``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "lab.user_kernel.rank"
EPILOG = """\
examples:
  python main.py bench mine.cu --record records/mine.json --author Ada
                                     needs a GPU; the rest needs none
  python main.py rank records        who is faster, on which card
  python main.py rank records --html ranking.html
                                     one page, with the rules

A ranking has one layer, number type, batch size, L2 state and model of card.
Records of one source share a row, with all names. A file that is no record,
contradicts itself or lies beside another source (NAME.cu beside NAME.json) is
listed with the reason. A record is no proof: docs/your-kernel.md says how to
judge the sources again.
"""
FAILED = "a file was not ranked"


class RankRequest(Frozen, kw_only=True):
    """Options of ``rank``: the folder of records, and the page to write."""

    folder: Path = option(
        "folder with records (*.json) of bench FILE.cu --record, also in folders below it",
        name="folder",
        metavar="FOLDER",
        group="what",
    )
    html: Path | None = option("write one self-contained page to FILE", group="output")
    output: Output = options(what="the rankings")
