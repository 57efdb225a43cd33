"""The commands that tell what there is: networks, their accuracy, a network's plan, kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.options import PRECISIONS, command, network_options


def networks_parser() -> argparse.ArgumentParser:
    """The parser of ``networks``."""
    parser = command("networks", "List every network: input, layers, parameters, FLOPs an image, shipped accuracy.")
    parser.add_argument("--json", metavar="FILE", help="also write the list as JSON; '-': to standard output alone")
    return parser


def accuracy_parser() -> argparse.ArgumentParser:
    """The parser of ``accuracy``."""
    parser = command(
        "accuracy",
        "Classify the test images with every shipped network: correct among the first 100, 1,000, 5,000 and 10,000, "
        "beside the old reports' figures.",
    )
    parser.add_argument("--network", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="where to run")
    parser.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="on the GPU, as main.py's")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    parser.add_argument("--json", metavar="FILE", help="also write the counts as JSON; '-': to standard output alone")
    return parser


def graph_parser() -> argparse.ArgumentParser:
    """The parser of ``graph``."""
    parser = command("graph", "Print the network: layers, shapes, parameters, FLOPs, bytes and each layer's kernel.")
    network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="architecture to choose for (default: this card's, else sm_90a)")
    return parser


def kernels_parser() -> argparse.ArgumentParser:
    """The parser of ``kernels``."""
    parser = command("kernels", "List every kernel in the registry: the idea, where it is from, limits and types.")
    parser.add_argument(
        "--resources",
        action="store_true",
        help="compile each (no GPU needed) and print registers, shared memory and spills",
    )
    parser.add_argument("--arch", metavar="NAME", help="architecture that --resources compiles for (default: sm_90a)")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON; '-': to standard output alone")
    return parser
