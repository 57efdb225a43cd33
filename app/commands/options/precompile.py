"""``main.py precompile``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from app.commands.options.common import command, network_options, network_request
from app.planning.request import NetworkRequest

PRECOMPILE_EPILOG = """\
examples:
  python main.py precompile                 for this machine's card
  python main.py precompile --arch sm_90a   for another card; needs no GPU here
  python main.py precompile --all           in every precision
"""


@dataclass(frozen=True)
class PrecompileRequest:
    """arch: the architecture to compile for, None for this card's. all: whether to compile every precision."""

    network: NetworkRequest
    arch: str | None
    all: bool


def precompile_parser() -> argparse.ArgumentParser:
    """The parser of ``precompile``."""
    parser = command("precompile", PRECOMPILE_EPILOG)
    network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="GPU architecture to compile for (default: this card's)")
    parser.add_argument("--all", action="store_true", help="compile for every precision that the architecture has")
    return parser


def precompile_request(options: argparse.Namespace) -> PrecompileRequest:
    """What ``precompile`` is asked for."""
    return PrecompileRequest(network_request(options), options.arch, options.all)
