"""``main.py networks``: its options."""

from __future__ import annotations

import argparse

from app.commands.options.common import command, output_options


def networks_parser() -> argparse.ArgumentParser:
    """The parser of ``networks``."""
    parser = command("networks")
    output_options(parser, "the list")
    return parser
