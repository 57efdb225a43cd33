"""``main.py profile``: its options, as a request, and back into arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from app.commands.options.common import (
    batch_option,
    command,
    network_options,
    network_request,
    output_options,
    output_request,
    pipeline_options,
    pipeline_request,
)
from app.output import Output
from app.planning.request import NetworkRequest
from app.runtime.request import Pipeline


@dataclass(frozen=True)
class ProfileRequest:
    """batch: images a run; trace: the file for the timeline; counters: whether ncu counts, too."""

    network: NetworkRequest
    batch: int
    pipeline: Pipeline
    trace: Path | None
    counters: bool
    output: Output


def profile_parser() -> argparse.ArgumentParser:
    """The parser of ``profile``."""
    parser = command("profile")
    batch_option(parser)
    network_options(parser)
    pipeline_options(parser)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a timeline to FILE, for Perfetto or chrome://tracing"
    )
    parser.add_argument(
        "--counters", action="store_true", help="also read each kernel's hardware counters with Nsight Compute (ncu)"
    )
    output_options(parser, "all figures")
    return parser


def profile_request(options: argparse.Namespace) -> ProfileRequest:
    """Make the request from the parsed options."""
    return ProfileRequest(
        network=network_request(options),
        batch=options.batch,
        pipeline=pipeline_request(options),
        trace=options.trace,
        counters=options.counters,
        output=output_request(options),
    )


def same_run(request: ProfileRequest) -> list[str]:
    """Arguments of ``main.py`` that make another process profile the same pipeline, without timeline or counters."""
    network = request.network
    values: dict[str, object] = {name: getattr(network, name) for name in ("network", "weights", "precision")}
    values |= {**network.kernels, "batch": request.batch, **vars(request.pipeline)}
    flags = {"no-fuse": not network.fuse, "latency": network.latency}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return ["profile", *given, *(f"--{name}" for name, on in flags.items() if on)]
