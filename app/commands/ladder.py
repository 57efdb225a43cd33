"""Define the options of ``main.py ladder``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.engine.request import gpu_option
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "ladder.command"
EPILOG = """\
examples:
  python main.py ladder                     every step on lenet5's layers
  python main.py ladder --network fa19 --json fa19.json
  python main.py ladder --pages pages       the pages of make docs for this card

Each step is checked against the float64 reference before it is timed. Its
counts of loads, bytes and instructions predict a time: no kernel with these
counts can be faster. Without a GPU the figures of the stored card are shown.
"""
FAILED = "a step was wrong"


class LadderRequest(Frozen, kw_only=True):
    """Options of ``ladder``: the network, the batch size, and where to write charts and pages."""

    network: str = option("name of the network, or its .toml file (default: lenet5)", "lenet5", metavar="NAME")
    batch: int = option("number of images (default: 10000)", 10_000, type=whole_number_type(1), metavar="N")
    device: str = gpu_option()
    output: Output = options("output", what="all figures")
    pages: Path | None = option("write a page for each step, static HTML, into DIR", metavar="DIR")
