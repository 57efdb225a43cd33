"""``main.py kernels``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command, output_options


def kernels_parser() -> argparse.ArgumentParser:
    """The parser of ``kernels``."""
    parser = command("kernels")
    parser.add_argument(
        "--resources",
        action="store_true",
        help="compile each (no GPU needed) and print registers, shared memory and spills",
    )
    parser.add_argument("--arch", metavar="NAME", help="architecture that --resources compiles for (default: sm_90a)")
    output_options(parser, "the table")
    return parser
