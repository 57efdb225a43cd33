"""``main.py networks``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command, output_options, output_request
from app.output import Output


def networks_parser() -> argparse.ArgumentParser:
    """The parser of ``networks``."""
    parser = command("networks")
    output_options(parser, "the list")
    return parser


def networks_request(options: argparse.Namespace) -> Output:
    """What ``networks`` is asked for."""
    return output_request(options)
