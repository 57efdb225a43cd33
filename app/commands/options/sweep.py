"""``main.py sweep``: its options and its request."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from app.commands.options.common import batch_option, command, output_options, output_request
from app.errors import UserError
from app.output import Output
from app.precision import PRECISIONS

SWEEP_EPILOG = """\
examples:
  python main.py sweep --conv implicit-gemm   both convolutions of lenet5
  python main.py sweep --conv register-patch --layer conv2 --network k7
  python main.py sweep --fc register-tiled --layer fc1
  python main.py sweep --conv shared-tile --set TILE=8,16,24
                                              only these tile sizes
  python main.py sweep --pipeline             streams and chunk sizes

The best point of each layer is stored for this card and used by 'auto'. An
interrupted sweep keeps what it has found.
"""


@dataclass(frozen=True)
class SweepRequest:
    """kernel: the option that names one (conv, fc or pool) and the name; None to sweep the pipeline instead.

    layer: None for all that the kernel serves. settings: ``NAME=V,V`` for each parameter with values of its own.
    images: a batch; fused: with the layers that follow; precision: None for the default; plot: the pictures' folder.
    """

    kernel: tuple[str, str] | None
    network: str
    layer: str | None
    settings: tuple[str, ...]
    images: int
    fused: bool
    precision: str | None
    plot: Path | None
    output: Output


def sweep_parser() -> argparse.ArgumentParser:
    """The parser of ``sweep``."""
    parser = command("sweep", SWEEP_EPILOG)
    parser.add_argument("--conv", metavar="NAME", help="kernel for convolutions to sweep")
    parser.add_argument("--fc", metavar="NAME", help="kernel for fully connected layers to sweep")
    parser.add_argument("--pool", metavar="NAME", help="kernel for pooling layers to sweep")
    parser.add_argument("--pipeline", action="store_true", help="sweep the main job's streams and chunk sizes instead")
    parser.add_argument("--network", default="lenet5", metavar="NAME", help="name of the network (default: lenet5)")
    parser.add_argument("--layer", metavar="NAME", help="only this layer (default: all that the kernel can compute)")
    values = "values to try of the parameter NAME (default: all); may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=V,…", help=values)
    batch_option(parser)
    parser.add_argument("--fused", action="store_true", help="include the activation and pooling that follow the layer")
    parser.add_argument("--precision", choices=PRECISIONS, help="arithmetic (default: fp32 if the kernel has it)")
    output_options(parser, "all points")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw heat map and 3-D plot into DIR (matplotlib)")
    return parser


def sweep_request(options: argparse.Namespace) -> SweepRequest:
    """Make the request. Raises UserError unless it names one thing to sweep, and for options that do not apply."""
    kernels = {"conv": options.conv, "fc": options.fc, "pool": options.pool}
    named = [(option, name) for option, name in kernels.items() if name is not None]
    if len(named) + options.pipeline != 1:
        raise UserError("say what to sweep: one of --conv NAME, --fc NAME, --pool NAME or --pipeline")
    if options.pipeline and (options.set or options.layer or options.fused):
        raise UserError("--pipeline sweeps the whole job: leave --set, --layer and --fused out")
    return SweepRequest(
        kernel=None if options.pipeline else named[0],
        network=options.network,
        layer=options.layer,
        settings=tuple(options.set),
        images=options.batch,
        fused=options.fused,
        precision=options.precision,
        plot=options.plot,
        output=output_request(options),
    )
