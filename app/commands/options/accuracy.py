"""``main.py accuracy``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from app.commands.options.common import command, output_options, output_request
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
    parser = command("accuracy", "Counted among the first 100, 1,000, 5,000 and 10,000 Fashion-MNIST test images.")
    parser.add_argument("--network", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="where to run")
    parser.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="on the GPU, as main.py's")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    output_options(parser, "the counts")
    return parser


def accuracy_request(options: argparse.Namespace) -> AccuracyRequest:
    """What ``accuracy`` is asked for."""
    return AccuracyRequest(
        options.network, options.device, options.precision, options.data_dir, output_request(options)
    )
