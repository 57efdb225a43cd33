"""``main.py accuracy``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from app.commands.options.common import command, data_dir_option, device_option, output_options, output_request
from app.output import Output
from app.precision import PRECISIONS


@dataclass(frozen=True)
class AccuracyRequest:
    """network: only this one, None for all. data_dir: the folder that holds Fashion-MNIST, None to look for it."""

    network: str | None
    device: str
    precision: str
    data_dir: Path | None
    output: Output


def accuracy_parser() -> argparse.ArgumentParser:
    """The parser of ``accuracy``."""
    parser = command("accuracy", "Counts are over the first 100, 1,000, 5,000 and 10,000 test images.")
    parser.add_argument("--network", metavar="NAME", help="name of the only network to run (default: all)")
    device_option(parser)
    parser.add_argument(
        "--precision", default="auto", choices=("auto", *PRECISIONS), help="arithmetic of the GPU, as for main.py"
    )
    data_dir_option(parser)
    output_options(parser, "the counts")
    return parser


def accuracy_request(options: argparse.Namespace) -> AccuracyRequest:
    """What ``accuracy`` is asked for."""
    return AccuracyRequest(
        options.network, options.device, options.precision, options.data_dir, output_request(options)
    )
