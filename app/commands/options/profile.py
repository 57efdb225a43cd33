"""``main.py profile``: its options."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.commands.options.common import command, network_options, output_options, pipeline_options
from app.console import whole_number


def profile_parser() -> argparse.ArgumentParser:
    """The parser of ``profile``."""
    parser = command("profile")
    parser.add_argument("--batch", type=whole_number(1), default=10_000, metavar="N", help="images (default: 10000)")
    network_options(parser)
    pipeline_options(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a timeline for Perfetto or chrome://tracing")
    parser.add_argument("--counters", action="store_true", help="hardware counters per kernel, by Nsight Compute (ncu)")
    output_options(parser, "all figures")
    return parser
