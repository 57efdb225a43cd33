"""The parser and the request of each command."""

import argparse
import importlib
from types import ModuleType
from typing import Any

from app import VERSION
from app.commands.options.descriptions import COMMANDS
from app.console import Parser
from app.options import add_options, read_request

MAIN_JOB = "run"
DESCRIPTIONS = COMMANDS | {MAIN_JOB: "Classify images with LeNet-5 on an NVIDIA GPU, or on the CPU without one."}


def parser_of(name: str) -> Parser:
    """The parser of one of the ``COMMANDS``, or of ``run``, the main job."""
    module = _options_module(name)
    parser = Parser(
        prog="main.py" if name == MAIN_JOB else f"main.py {name}",
        description=DESCRIPTIONS[name],
        epilog=getattr(module, "EPILOG", ""),
        usage=getattr(module, "USAGE", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name == MAIN_JOB:
        parser.add_argument("--version", action="version", version=f"lenet5-inference {VERSION}")
    add_options(parser, module.REQUEST)
    return parser


def request_of(name: str, options: argparse.Namespace) -> Any:
    """The frozen request that the body of the command takes. options: what ``parser_of(name)`` parsed.

    Raises UserError for options that contradict each other.
    """
    return read_request(_options_module(name).REQUEST, vars(options))


def _options_module(name: str) -> ModuleType:
    return importlib.import_module(f"app.commands.options.{name}")
