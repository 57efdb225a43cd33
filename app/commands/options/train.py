"""``main.py train``: its options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from app.commands.options.common import command
from app.console import Switch
from app.training.request import TrainRequest
from app.training.settings import SETTINGS, WORKERS, Settings, parse_dropout

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
    """The parser of ``train``; options that are not given are None."""
    parser = command("train", TRAIN_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", metavar="NAME", help="the network to train, from scratch; mlp_500: mlp, but wider")
    what.add_argument("--resume", type=Path, metavar="FILE", help="the checkpoint of a training to go on with")
    what.add_argument("--output", type=Path, metavar="FILE", help="weights to write (default: NAME_trained.h5)")
    what.add_argument("--overwrite", action="store_true", help="replace the weights in --output, if there are any")
    what.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="auto: a GPU if there is one")
    data = parser.add_argument_group("images")
    data.add_argument("--images", **SETTINGS["images"].option, help="only the first N (default: all 60,000)")
    data.add_argument(
        "--validation",
        **SETTINGS["validation"].option,
        help="held out to choose the best epoch (default: a twelfth)",
    )
    data.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    data.add_argument("--data", type=Path, metavar="FILE", help="own images: IDX (.gz or not), or HDF5 with x and y")
    data.add_argument("--labels", type=Path, metavar="FILE", help="IDX labels for --data")
    parser.add_argument(
        "--workers",
        **WORKERS.option,
        help="processes that share each batch: a GPU each, or the CPU's cores (default: 1, or as many as before)",
    )
    how = parser.add_argument_group("how (default: the network's recipe)")
    how.add_argument("--epochs", **SETTINGS["epochs"].option, help="passes over the images")
    how.add_argument("--batch", **SETTINGS["batch"].option, help="images between two updates")
    how.add_argument("--seed", **SETTINGS["seed"].option, help="of everything random (default: 1)")
    how.add_argument("--optimiser", **SETTINGS["optimiser"].option, help="sgd has momentum")
    how.add_argument("--rate", **SETTINGS["rate"].option, help="peak of the one-cycle schedule")
    how.add_argument("--weight-decay", **SETTINGS["weight_decay"].option, help="decoupled, times the rate")
    how.add_argument("--l2", **SETTINGS["l2"].option, help="X/2 times the weights' squares, in the loss")
    how.add_argument("--smoothing", **SETTINGS["smoothing"].option, help="of the labels")
    how.add_argument("--dropout", metavar="LAYER=X,…", help="share of a layer's inputs left out (or: none)")
    how.add_argument("--shift", **SETTINGS["shift"].option, help="most pixels that images are shifted by")
    how.add_argument("--flip", action=Switch, default=None, help="flip half of the images")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--json", metavar="FILE", help="also write settings and epochs as JSON; '-': to standard output alone"
    )
    out.add_argument("--storage", **SETTINGS["storage"].option, help="type of the weights in their file")
    out.add_argument("--plot", type=Path, metavar="DIR", help="draw the learning curve (matplotlib)")
    return parser


def train_request(options: argparse.Namespace) -> TrainRequest:
    """What ``train`` is asked for. Raises UserError for a ``--dropout`` that is not LAYER=SHARE,… or none."""
    values = {name: value for name, value in vars(options).items() if value is not None}
    # ``--data`` names a file; the setting is the hash of its images.
    names = [field.name for field in fields(Settings) if field.name != "data"]
    settings: dict[str, Any] = {name: values.pop(name) for name in names if name in values}
    if "dropout" in settings:
        settings["dropout"] = parse_dropout(settings["dropout"])
    return TrainRequest(settings=settings, **values)
