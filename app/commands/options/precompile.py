"""``main.py precompile``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command, network_options

PRECOMPILE_EPILOG = """\
examples:
  python main.py precompile                     for this machine's card
  python main.py precompile --arch sm_90a       for another: needs no GPU, for an image that will run on one
  python main.py precompile --all               every precision
"""


def precompile_parser() -> argparse.ArgumentParser:
    """The parser of ``precompile``."""
    parser = command("precompile", PRECOMPILE_EPILOG)
    network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="architecture to compile for (default: this card's)")
    parser.add_argument("--all", action="store_true", help="every precision that the architecture has, not just one")
    return parser
