"""``main.py networks``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command


def networks_parser() -> argparse.ArgumentParser:
    """The parser of ``networks``."""
    parser = command("networks")
    parser.add_argument("--json", metavar="FILE", help="also write the list as JSON; '-': to standard output alone")
    return parser
