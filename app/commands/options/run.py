"""The main job's options: ``main.py`` without a command."""

from __future__ import annotations

import argparse

from app import VERSION
from app.commands.options.common import (
    COMMANDS,
    data_options,
    device_option,
    network_options,
    network_request,
    output_options,
    output_request,
    pipeline_options,
    pipeline_request,
)
from app.console import Parser, number, whole_number
from app.precision import PRECISIONS
from app.runtime.request import DEFAULT_WARMUP, ImagesRequest, RunRequest
from app.text import fields

DESCRIPTION = "Classify images with LeNet-5 on an NVIDIA GPU, or on the CPU without one."

EPILOG = """\
examples:
  python main.py --batch 10000               10,000 Fashion-MNIST test images
  python main.py --batch 60000 --split train
                                             all training images
  python main.py --batch 1000000 --cycle     the test images 100 times
  python main.py --weights model.hdf5 --data test100.hdf5
                                             your own weights and images
  python main.py --compare fp16              what fp16 gains and changes
  python main.py --batch 10000 --json -      the report as JSON

commands, each with its own --help (python main.py COMMAND --help):
{commands}

exit codes: 0 neither agreement nor answers failed; 1 one did; 2 a usage, data,
weights or device error, or an interruption (Ctrl-C, SIGTERM, SIGHUP); 3 a bug.
"""


def run_parser() -> argparse.ArgumentParser:
    """The parser of the main job."""
    parser = Parser(
        prog="main.py",
        description=DESCRIPTION,
        epilog=EPILOG.format(commands="\n".join(fields(COMMANDS.items()))),
        usage="%(prog)s [options]\n       %(prog)s COMMAND [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lenet5-inference {VERSION}")
    parser.add_argument(
        "--batch",
        type=whole_number(1),
        metavar="N",
        help="number of images to classify (default: 10000, or all if fewer)",
    )
    device_option(parser)
    data = parser.add_argument_group("images")
    data.add_argument("--split", choices=("test", "train"), help="Fashion-MNIST images to use (default: test)")
    data_options(data)
    data.add_argument(
        "--labels", metavar="FILE", help="IDX file of the right labels for --data; 'none': answers are not checked"
    )
    data.add_argument("--cycle", action="store_true", help="repeat the images until --batch is reached")
    network_options(parser)
    pipeline_options(parser)
    measure = parser.add_argument_group("measuring and checking")
    measure.add_argument(
        "--repeat",
        type=whole_number(1, 100_000),
        metavar="N",
        help="number of timed runs (default: 100 on a GPU, 1000 for up to 100 images; 1 on the CPU and with --cycle)",
    )
    measure.add_argument(
        "--warmup",
        type=whole_number(0, 100_000),
        default=DEFAULT_WARMUP,
        metavar="N",
        help=f"number of untimed GPU runs before (default: {DEFAULT_WARMUP})",
    )
    measure.add_argument(
        "--compare",
        choices=PRECISIONS,
        help="also time the batch in this precision; print the gain and the labels that differ (GPU)",
    )
    measure.add_argument(
        "--recheck", action="store_true", help="recompute every label with the float64 NumPy reference, and compare"
    )
    measure.add_argument(
        "--min-accuracy",
        type=number(0, 1),
        metavar="X",
        help="fail, with exit code 1, if the share of correct answers is below X (0 to 1)",
    )
    output_options(measure, "the report")
    return parser


def run_request(options: argparse.Namespace) -> RunRequest:
    """What the main job is asked for."""
    images = ImagesRequest(
        split=options.split,
        data_dir=options.data_dir,
        data=options.data,
        labels=options.labels,
        batch=options.batch,
        cycle=options.cycle,
    )
    return RunRequest(
        network=network_request(options),
        images=images,
        pipeline=pipeline_request(options),
        device=options.device,
        repeat=options.repeat,
        warmup=options.warmup,
        compare=options.compare,
        recheck=options.recheck,
        min_accuracy=options.min_accuracy,
        output=output_request(options),
    )
