"""Define the options of ``main.py accuracy``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.engine.request import data_dir_option, device_option
from app.planning.request import precision_option
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "images.accuracy"
EPILOG = """\
examples:
  python main.py accuracy                 every network that is shipped
  python main.py accuracy --network fa19 --device cpu
  python main.py accuracy --weights mine.h5

accuracy counts over the first 100, 1,000, 5,000 and 10,000 test images.
"""
FAILED = "a check failed"


class AccuracyRequest(Frozen, kw_only=True):
    """Options of ``accuracy``: which network or weights to run, and on which device."""

    network: str | None = option("name of the network to run, or its .toml file (default: all)", metavar="NAME")
    weights: Path | None = option("HDF5 file of weights, whose network to run (default: the shipped ones)")
    device: str = device_option()
    precision: str = precision_option()
    data_dir: Path | None = data_dir_option()
    output: Output = options(what="the counts")
