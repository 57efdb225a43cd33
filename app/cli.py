"""The command line: what can be asked for, and how errors reach the user."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from app.console import Parser, guarded
from app.errors import UserError
from app.interrupts import exit_on_interrupt

DESCRIPTION = "Classify images with LeNet-5 on an NVIDIA GPU, with CUDA kernels of our own; on the CPU without one."
EPILOG = """\
examples:
  python main.py --batch 10000                 the main job: 10,000 Fashion-MNIST test images
  python main.py --batch 60000 --split train   the training images
  python main.py --batch 1000000 --cycle       stream the test images 100 times
  python main.py --weights model.hdf5 --data test100.hdf5
                                               your own weights and images (HDF5 or IDX)
  python main.py --batch 10000 --json -        the report as JSON on standard output
  python main.py graph                         the network: shapes, FLOPs, bytes, kernels
  python main.py kernels                       every kernel that can be chosen

exit codes: 0 the accuracy check passed; 1 it did not; 2 a usage, data, weights or device error; 3 a bug.
"""
MAX_BATCH = 10**12


def whole_number(least: int, most: int = MAX_BATCH) -> Callable[[str], int]:
    """An argparse type: a whole number from ``least`` to ``most``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most:,}")
        return value

    return convert


def _network_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--network", metavar="NAME", help="the network (default: the one that the weights file names)")
    group.add_argument("--weights", type=Path, metavar="FILE", help="HDF5 weights (default: weights/lenet5_fashion.h5)")
    group.add_argument(
        "--conv", default="auto", metavar="NAME", help="convolution kernel (default: auto; see 'kernels')"
    )
    group.add_argument("--fc", default="auto", metavar="NAME", help="fully connected kernel (default: auto)")
    group.add_argument("--no-fuse", action="store_true", help="run every layer as a kernel of its own")


def run_parser() -> argparse.ArgumentParser:
    """The parser of the main job."""
    parser = Parser(
        prog="main.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--batch", type=whole_number(1), metavar="N", help="images to classify (default: 10000, or all if fewer)"
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cuda", "cpu"),
        help="where to run (auto: a GPU if there is one)",
    )
    data = parser.add_argument_group("images")
    data.add_argument("--split", default="test", choices=("test", "train"), help="Fashion-MNIST split (default: test)")
    data.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    data.add_argument("--data", type=Path, metavar="FILE", help="own images: IDX (.gz or not), or HDF5 with x and y")
    data.add_argument("--labels", metavar="FILE", help="IDX labels for --data, or 'none': agreement alone decides")
    data.add_argument("--cycle", action="store_true", help="a batch beyond the data streams them again and again")
    _network_options(parser)
    pipeline = parser.add_argument_group("pipeline (GPU)")
    pipeline.add_argument(
        "--streams", type=whole_number(1, 64), default=4, metavar="N", help="chunks in flight at once (default: 4)"
    )
    pipeline.add_argument(
        "--chunk", type=whole_number(1), metavar="N", help="images per copy (default: a tenth of the batch)"
    )
    measure = parser.add_argument_group("measuring and checking")
    measure.add_argument(
        "--repeat",
        type=whole_number(1, 100_000),
        metavar="N",
        help="timed runs (default: 50 on a GPU, 1 on the CPU and with --cycle)",
    )
    measure.add_argument(
        "--warmup", type=whole_number(0, 100_000), default=5, metavar="N", help="untimed GPU runs before (default: 5)"
    )
    measure.add_argument(
        "--recheck", action="store_true", help="recompute every label by the float64 NumPy reference and compare"
    )
    measure.add_argument("--json", metavar="FILE", help="also write the report as JSON; '-': to standard output alone")
    return parser


def graph_parser() -> argparse.ArgumentParser:
    """The parser of ``graph``."""
    parser = Parser(
        prog="main.py graph",
        description="Print the network: layers, shapes, parameters, FLOPs, bytes and the kernel chosen for each.",
        allow_abbrev=False,
    )
    _network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="architecture to choose for (default: this card's, else sm_90a)")
    return parser


def kernels_parser() -> argparse.ArgumentParser:
    """The parser of ``kernels``."""
    return Parser(prog="main.py kernels", description="List every kernel in the registry.", allow_abbrev=False)


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; returns the exit code. Raises UserError."""
    # Imports are deferred so that --help and mistakes answer at once.
    if arguments and arguments[0] == "graph":
        options = graph_parser().parse_args(arguments[1:])
        with exit_on_interrupt():
            from app.listing import graph

        print(graph(options))
        return 0
    if arguments and arguments[0] == "kernels":
        kernels_parser().parse_args(arguments[1:])
        with exit_on_interrupt():
            from app.listing import kernels

        print(kernels())
        return 0
    if arguments and not arguments[0].startswith("-"):
        raise UserError(f"unknown command {arguments[0]!r}: there are graph and kernels; see main.py --help")
    options = run_parser().parse_args(arguments)
    with exit_on_interrupt():
        from app.run import run

    return run(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return guarded(lambda: dispatch(sys.argv[1:] if arguments is None else arguments))
