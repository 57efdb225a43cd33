"""``main.py train``: its options."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.commands.options.common import _setting, command
from app.console import Switch
from app.training.limits import WORDS

TRAIN_EPILOG = """\
examples:
  python main.py train --network lenet5                        as the shipped weights were made; CPU: over an hour
  python main.py train --network mlp --epochs 10 --plot plots  a quick one, with its learning curve
  python main.py train --network k7 --images 2000 --epochs 2   a try
  python main.py train --resume lenet5_trained.h5.checkpoint   go on where an interrupted training stopped
  python main.py train --network lenet5 --workers 2            two processes share each batch
  python main.py --weights mlp_trained.h5                      classify with what came out

The epoch that is best on the images held out is kept; the test images are used once, at the end, to record what the
weights promise. Same options, same card or CPU, as many workers: same bits, resumed or not; with other --workers the
same within rounding. What is not said is the network's own recipe. --resume remembers the options of images, --plot
and --json.

exit codes: 0 the weights are written; 2 a usage, data or device error, an interruption, or a training that diverges
(its loss is no number, or over ten times that of guessing); 3 a bug.
"""


def train_parser() -> argparse.ArgumentParser:
    """The parser of ``train``. What is None was not said."""
    parser = command("train", TRAIN_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", metavar="NAME", help="the network to train, from scratch; mlp_500: mlp, but wider")
    what.add_argument("--resume", type=Path, metavar="FILE", help="the checkpoint of a training to go on with")
    what.add_argument("--output", type=Path, metavar="FILE", help="weights to write (default: NAME_trained.h5)")
    what.add_argument("--overwrite", action="store_true", help="replace the weights in --output, if there are any")
    what.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="auto: a GPU if there is one")
    data = parser.add_argument_group("images")
    data.add_argument("--images", type=_setting("images"), metavar="N", help="only the first N (default: all 60,000)")
    data.add_argument(
        "--validation",
        type=_setting("validation"),
        metavar="N",
        help="held out to choose the best epoch (default: a twelfth)",
    )
    data.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    data.add_argument("--data", type=Path, metavar="FILE", help="own images: IDX (.gz or not), or HDF5 with x and y")
    data.add_argument("--labels", type=Path, metavar="FILE", help="IDX labels for --data")
    parser.add_argument(
        "--workers",
        type=_setting("workers"),
        metavar="N",
        help="processes that share each batch: a GPU each, or the CPU's cores (default: 1, or as many as before)",
    )
    how = parser.add_argument_group("how (default: the network's recipe)")
    how.add_argument("--epochs", type=_setting("epochs"), metavar="N", help="passes over the images")
    how.add_argument("--batch", type=_setting("batch"), metavar="N", help="images between two updates")
    how.add_argument("--seed", type=_setting("seed"), metavar="N", help="of everything random (default: 1)")
    how.add_argument("--optimiser", choices=WORDS["optimiser"], help="sgd has momentum")
    how.add_argument("--rate", type=_setting("rate"), metavar="X", help="peak of the one-cycle schedule")
    how.add_argument("--weight-decay", type=_setting("weight_decay"), metavar="X", help="decoupled, times the rate")
    how.add_argument("--l2", type=_setting("l2"), metavar="X", help="X/2 times the weights' squares, in the loss")
    how.add_argument("--smoothing", type=_setting("smoothing"), metavar="X", help="of the labels")
    how.add_argument("--dropout", metavar="LAYER=X,…", help="share of a layer's inputs left out (or: none)")
    how.add_argument("--shift", type=_setting("shift"), metavar="N", help="most pixels that images are shifted by")
    how.add_argument("--flip", action=Switch, default=None, help="flip half of the images")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--json", metavar="FILE", help="also write settings and epochs as JSON; '-': to standard output alone"
    )
    out.add_argument("--storage", choices=WORDS["storage"], help="type of the weights in their file")
    out.add_argument("--plot", type=Path, metavar="DIR", help="draw the learning curve (matplotlib)")
    return parser
