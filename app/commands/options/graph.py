"""``main.py graph``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from app.commands.options.common import command, network_options, network_request, wide_option
from app.planning.request import NetworkRequest


@dataclass(frozen=True)
class GraphRequest:
    """arch: the architecture to choose kernels for. wide: whether lines may be wider than the terminal."""

    network: NetworkRequest
    arch: str | None
    wide: bool


def graph_parser() -> argparse.ArgumentParser:
    """The parser of ``graph``."""
    parser = command("graph")
    network_options(parser)
    parser.add_argument(
        "--arch", metavar="NAME", help="GPU architecture to plan for (default: this card's, else sm_90a)"
    )
    wide_option(parser)
    return parser


def graph_request(options: argparse.Namespace) -> GraphRequest:
    """What ``graph`` is asked for."""
    return GraphRequest(network_request(options), options.arch, options.wide)
