"""``python -m data_tools quantise``: 8-bit filters for ``--precision int8``, calibrated on training images."""

import argparse

from app.network.quantising import quantise
from data_tools import calibration

DESCRIPTION = "Add 8-bit filters to weights, with error compensation on training images."
EPILOG = """\
examples:
  python -m data_tools quantise mine.h5 mine8.h5
      adds 8-bit filters to the weights in mine.h5: half a minute for lenet5's
  python main.py --weights mine8.h5 --precision int8
      runs with them

--precision int8 multiplies the second convolution in 8-bit integers. quantise
chooses what the greatest byte of each map of its input stands for, and rounds
its filters to -127 to 127 steps, a step for each map of its output; the filters
that are not yet rounded compensate for each error. OUT has the weights of IN
unchanged, and the 8-bit filters beside them. quantise reads the first --images
training images of Fashion-MNIST and never the test images, and replaces no
file.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``quantise``."""
    calibration.add_options(parser, "weights file to quantise")


def run(options: argparse.Namespace) -> None:
    """Quantise the second convolution and print its error. Raises UserError."""
    refusal = "has 8-bit filters already: there is nothing to quantise"
    weights, graph, images = calibration.opened(options, lambda found: found.quantised is not None, refusal)
    quantised, error, plain = quantise(graph, images)
    least, most = quantised.limits.min(), quantised.limits.max()
    print(f"{quantised.layer}: byte 255 stands for activations of {least:.3g} to {most:.3g}, by map")
    print(f"{quantised.layer}: its results change by {error:.1e} (plain rounding: {plain:.1e})")
    kept = {"expected_correct": weights.expected_correct, "storage": weights.storage}
    calibration.save(options, weights, f"{quantised.layer} quantised to 8 bits", quantised=quantised, **kept)
