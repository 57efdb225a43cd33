"""``python -m data_tools round``: weights that float16 holds exactly, with error compensation on training images."""

import argparse

import numpy as np

from app.network.rounding import round_layers
from data_tools import calibration

DESCRIPTION = "Round weights to float16, with error compensation on training images."
EPILOG = """\
examples:
  python -m data_tools round mine.h5 mine16.h5
      rounds the weights in mine.h5; lenet5's take half a minute
  python -m data_tools bundle mine16.h5
      ships them, with new counts of correct answers

On Hopper cards, --precision fp32x multiplies weights that float16 holds
exactly by two products instead of three. The weights that are not yet rounded
compensate for each error, so that a layer's results change less than by plain
rounding (main.py train --storage float16); round prints both. It reads the
first --images training images of Fashion-MNIST and never the test images,
replaces no file and promises no counts. Memory: five matrices of float64 with
a row and a column for each input of the widest layer.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``round``."""
    calibration.add_options(parser, "weights file to round")


def run(options: argparse.Namespace) -> None:
    """Round the weights and print each layer's error. Raises UserError."""
    refusal = "is stored as float16 already: there is nothing to round"
    weights, graph, images = calibration.opened(options, lambda found: found.storage == "float16", refusal)
    arrays: dict[str, np.ndarray] = {}
    for layer in round_layers(graph, images):
        arrays |= layer.arrays
        print(f"{layer.name}: its results change by {layer.error:.1e} (plain rounding: {layer.plain:.1e})")
    how = "rounded to float16 with error compensation"
    calibration.save(options, weights, how, arrays=arrays, storage="float16")
