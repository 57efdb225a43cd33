"""The commands beside the main job, and the options that they share with it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from app.console import Parser, whole_number
from app.output import Output
from app.planning.request import NetworkRequest
from app.precision import PRECISIONS
from app.runtime.request import DEFAULT_STREAMS, Pipeline


def network_options(parser: argparse.ArgumentParser) -> None:
    """Which network, weights, kernels and precision."""
    group = parser.add_argument_group("network")
    group.add_argument(
        "--network", metavar="NAME", help="name of the network (default: that of --weights, else lenet5)"
    )
    group.add_argument(
        "--weights", type=Path, metavar="FILE", help="HDF5 file of weights (default: those shipped in weights/)"
    )
    group.add_argument(
        "--conv",
        default="auto",
        metavar="NAME",
        help="kernel for convolutions, or one for each: conv1=NAME,conv2=NAME (default: auto, the fastest known; "
        "'main.py kernels' lists them)",
    )
    group.add_argument("--fc", default="auto", metavar="NAME", help="kernel for fully connected layers (default: auto)")
    group.add_argument("--pool", default="auto", metavar="NAME", help="kernel for pooling layers (default: auto)")
    group.add_argument(
        "--latency",
        action="store_true",
        help="split the sums of fully connected layers over more blocks: faster for a few images, rounds differently",
    )
    group.add_argument(
        "--precision",
        default="auto",
        choices=("auto", *PRECISIONS),
        help="arithmetic of the GPU: how numbers are multiplied and stored; sums are float32. fp32x is as exact as "
        "fp32, but runs on tensor cores. auto: fp32x where the card and the network allow it, else fp32",
    )
    group.add_argument("--no-fuse", action="store_true", help="run each layer as a kernel of its own")


def network_request(options: argparse.Namespace) -> NetworkRequest:
    """The values of ``network_options``."""
    return NetworkRequest(
        network=options.network,
        weights=options.weights,
        kernels={"conv": options.conv, "fc": options.fc, "pool": options.pool},
        latency=options.latency,
        precision=options.precision,
        fuse=not options.no_fuse,
    )


# Every command and what it does, in the order of ``main.py --help``.
COMMANDS = {
    "networks": "List every network: input, layers, parameters, FLOPs, accuracy.",
    "accuracy": "Count the correct answers of every network, beside its report's.",
    "graph": "Print a network: shapes, FLOPs, bytes, each layer's kernel.",
    "kernels": "List every kernel: the idea, its origin, limits and types.",
    "precompile": "Compile the main job's kernels before its first run.",
    "bench": "Check and time every kernel, layer by layer (GPU).",
    "sweep": "Find the best tile sizes of one kernel for this card (GPU).",
    "profile": "Show where the main job's time goes: kernels, copies, calls (GPU).",
    "train": "Train a network on Fashion-MNIST, on a GPU or slowly on the CPU.",
}


def command(name: str, epilog: str = "") -> Parser:
    """The parser of one of the ``COMMANDS``, still without options."""
    return Parser(
        prog=f"main.py {name}",
        description=COMMANDS[name],
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one of the ``COMMANDS``, or of ``run``, the main job."""
    parser: argparse.ArgumentParser = getattr(importlib.import_module(f"{__package__}.{name}"), f"{name}_parser")()
    return parser


def request_of(name: str, options: argparse.Namespace) -> Any:
    """The frozen request that the body of the command takes. options: what ``parser_of(name)`` parsed."""
    return getattr(importlib.import_module(f"{__package__}.{name}"), f"{name}_request")(options)


def pipeline_options(parser: argparse.ArgumentParser) -> None:
    """``--streams`` and ``--chunk``."""
    pipeline = parser.add_argument_group("pipeline (GPU)")
    pipeline.add_argument(
        "--streams",
        type=whole_number(1, 64),
        default=DEFAULT_STREAMS,
        metavar="N",
        help=f"number of CUDA streams, which work on as many chunks at once (default: {DEFAULT_STREAMS})",
    )
    pipeline.add_argument(
        "--chunk",
        type=whole_number(1),
        metavar="N",
        help="number of images copied to the GPU at a time (default: a fifth of the batch, at most 4096)",
    )


def pipeline_request(options: argparse.Namespace) -> Pipeline:
    """The values of ``pipeline_options``."""
    return Pipeline(options.streams, options.chunk)


def output_options(group: argparse._ActionsContainer, what: str) -> None:
    """``--json`` and ``--wide``. what: is written to the file, e.g. ``the report``."""
    json_option(group, what)
    wide_option(group)


def device_option(group: argparse._ActionsContainer) -> None:
    """``--device``."""
    choices = ("auto", "cuda", "cpu")
    group.add_argument("--device", default="auto", choices=choices, help="where to run; auto: a GPU if there is one")


def data_dir_option(group: argparse._ActionsContainer) -> None:
    """``--data-dir``."""
    group.add_argument("--data-dir", type=Path, metavar="DIR", help="folder that holds Fashion-MNIST's files")


def json_option(group: argparse._ActionsContainer, what: str) -> None:
    """``--json``. what: is written to the file, e.g. ``the report``."""
    group.add_argument("--json", metavar="FILE", help=f"also write {what} to FILE as JSON; '-' prints only the JSON")


def data_options(group: argparse._ActionsContainer) -> None:
    """``--data-dir`` and ``--data``."""
    data_dir_option(group)
    own = "file of your own images: IDX (.gz or not), or HDF5 with x and y"
    group.add_argument("--data", type=Path, metavar="FILE", help=own)


def batch_option(group: argparse._ActionsContainer) -> None:
    """``--batch`` of the commands that measure."""
    batch = whole_number(1)
    group.add_argument("--batch", type=batch, default=10_000, metavar="N", help="number of images (default: 10000)")


def wide_option(group: argparse._ActionsContainer) -> None:
    """``--wide``, for every command that prints tables."""
    group.add_argument(
        "--wide", action="store_true", help="print every column of the tables, even beyond the terminal's width"
    )


def output_request(options: argparse.Namespace) -> Output:
    """The values of ``output_options``."""
    return Output(options.json, options.wide)
