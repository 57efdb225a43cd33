"""``python -m data_tools quantise``: 8-bit filters for ``--precision int8``, calibrated on training images."""

import argparse

from app.errors import UserError, escaped
from app.network.graph import build
from app.network.quantising import quantise
from app.network.weights import load_weights, save_weights
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
    calibration.check(options)
    weights = load_weights(options.file)
    if weights.quantised is not None:
        raise UserError(f"{options.file} has 8-bit filters already: there is nothing to quantise")
    calibration.check_out(options.out)
    network = weights.own_network()
    graph = build(network, weights)
    images = calibration.images(options, network)
    quantised, error, plain = quantise(graph, images)
    least, most = quantised.limits.min(), quantised.limits.max()
    print(f"{quantised.layer}: byte 255 stands for activations of {least:.3g} to {most:.3g}, by map")
    print(f"{quantised.layer}: its results change by {error:.1e} (plain rounding: {plain:.1e})")
    how = f"{quantised.layer} quantised to 8 bits on {len(images)} training images"
    save_weights(
        options.out,
        weights.arrays,
        network=network,
        classes=weights.classes,
        input_scale=weights.input_scale,
        recipe=f"{weights.recipe}; {how}" if weights.recipe else how,
        expected_correct=weights.expected_correct,
        storage=weights.storage,
        quantised=quantised,
        overwrite=False,
    )
    print(escaped(f"wrote {options.out}"))
