"""``main.py graph``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command, network_options, wide_option


def graph_parser() -> argparse.ArgumentParser:
    """The parser of ``graph``."""
    parser = command("graph")
    network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="architecture to choose for (default: this card's, else sm_90a)")
    wide_option(parser)
    return parser
