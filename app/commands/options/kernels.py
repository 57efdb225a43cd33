"""``main.py kernels``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from app.commands.options.common import command, output_options, output_request
from app.output import Output


@dataclass(frozen=True)
class KernelsRequest:
    """resources: whether to compile each kernel, for the architecture ``arch`` (None: the reference)."""

    resources: bool
    arch: str | None
    output: Output


def kernels_parser() -> argparse.ArgumentParser:
    """The parser of ``kernels``."""
    parser = command("kernels")
    parser.add_argument(
        "--resources",
        action="store_true",
        help="compile each kernel (needs no GPU) and print its registers, shared memory and spills",
    )
    parser.add_argument(
        "--arch", metavar="NAME", help="GPU architecture that --resources compiles for (default: sm_90a)"
    )
    output_options(parser, "the table")
    return parser


def kernels_request(options: argparse.Namespace) -> KernelsRequest:
    """What ``kernels`` is asked for."""
    return KernelsRequest(options.resources, options.arch, output_request(options))
