"""``main.py train``: its options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from app.commands.options.common import command, data_options, device_option, json_option
from app.console import Switch
from app.training.request import TrainRequest
from app.training.settings import SETTINGS, WORKERS, Settings, parse_dropout

TRAIN_EPILOG = """\
examples:
  python main.py train --network lenet5
      as the shipped weights were made; on the CPU this takes over an hour
  python main.py train --network mlp --epochs 10 --plot plots
      a short training, with its learning curve
  python main.py train --network k7 --images 2000 --epochs 2
      a trial
  python main.py train --resume lenet5_trained.h5.checkpoint
      continue a training that was interrupted
  python main.py train --network lenet5 --workers 2
      two processes share each batch
  python main.py --weights mlp_trained.h5
      classify with the trained weights

The weights of the epoch that is most accurate on the held-out images are kept.
The test images are used once, at the end, to record the accuracy that the
weights promise. The same options on the same card or CPU with as many workers
give identical weights, resumed or not; another --workers gives the same within
rounding. --resume remembers the options of images, --plot and --json.

exit codes: 0 the weights are written; 2 a usage, data or device error, an
interruption, or a training that diverges (its loss is not a number, or over ten
times that of guessing); 3 a bug.
"""

# Settings of the recipe whose option takes one value.
HOW = {
    "epochs": "number of passes over the images",
    "batch": "number of images between two updates of the weights",
    "seed": "seed of all random numbers (default: 1)",
    "optimiser": "rule that updates the weights; sgd is with momentum",
    "rate": "highest learning rate, the peak of a one-cycle schedule",
    "weight_decay": "share of the weights taken away in each update, times the rate",
    "l2": "penalty in the loss: X/2 times the sum of the weights' squares",
    "smoothing": "label smoothing: share of a label spread over all classes",
    "shift": "largest random shift of an image, in pixels",
}


def train_parser() -> argparse.ArgumentParser:
    """The parser of ``train``; options that are not given are None."""
    parser = command("train", TRAIN_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", metavar="NAME", help="network to train from scratch; mlp_500 is a wider mlp")
    what.add_argument("--resume", type=Path, metavar="FILE", help="checkpoint of an interrupted training to continue")
    what.add_argument("--output", type=Path, metavar="FILE", help="where to write weights (default: NAME_trained.h5)")
    what.add_argument("--overwrite", action="store_true", help="replace the weights that --output already holds")
    device_option(what)
    data = parser.add_argument_group("images")
    data.add_argument("--images", **SETTINGS["images"].option, help="number of images to use (default: all 60,000)")
    held_out = "number of images held out to choose the best epoch (default: a twelfth)"
    data.add_argument("--validation", **SETTINGS["validation"].option, help=held_out)
    data_options(data)
    data.add_argument("--labels", type=Path, metavar="FILE", help="IDX file of the right labels for --data")
    parser.add_argument(
        "--workers",
        **WORKERS.option,
        help="number of processes that share each batch, one for each GPU, or on the CPU's cores (default: 1; with "
        "--resume as many as before)",
    )
    how = parser.add_argument_group("how (default: the network's recipe)")
    for name, text in HOW.items():
        how.add_argument(f"--{name.replace('_', '-')}", **SETTINGS[name].option, help=text)
    how.add_argument("--dropout", metavar="LAYER=X,…", help="share of a layer's inputs to drop at random, or 'none'")
    how.add_argument("--flip", action=Switch, default=None, help="flip half of the images at random, or none")
    out = parser.add_argument_group("output")
    json_option(out, "settings and epochs")
    out.add_argument("--storage", **SETTINGS["storage"].option, help="number type of the weights in their file")
    out.add_argument("--plot", type=Path, metavar="DIR", help="draw the learning curve into DIR (needs matplotlib)")
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
