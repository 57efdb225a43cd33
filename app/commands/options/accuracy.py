"""``main.py accuracy``: its options."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.commands.options.common import command, output_options
from app.precision import PRECISIONS


def accuracy_parser() -> argparse.ArgumentParser:
    """The parser of ``accuracy``."""
    parser = command("accuracy", "Counted among the first 100, 1,000, 5,000 and 10,000 Fashion-MNIST test images.")
    parser.add_argument("--network", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="where to run")
    parser.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="on the GPU, as main.py's")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    output_options(parser, "the counts")
    return parser
