"""The command line: what can be asked for, and how errors reach the user."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from app.commands.options.common import COMMANDS
from app.commands.options.run import run_parser
from app.console import guarded
from app.errors import UserError, suggestion
from app.interrupts import exit_on_interrupt
from app.output import check_outputs
from app.processor import check_room
from app.runtime.startup import Stopwatch

# Commands whose body is in a room of its own: the module that has the function of the command's name.
BODIES = {
    "bench": "app.bench.ladder.job",
    "sweep": "app.bench.sweep.job",
    "profile": "app.bench.profile.job",
    "train": "app.training.command",
}


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one of the ``COMMANDS``."""
    parser: argparse.ArgumentParser = getattr(
        importlib.import_module(f"app.commands.options.{name}"), f"{name}_parser"
    )()
    return parser


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; returns the exit code. Raises UserError."""
    # Imports are deferred so that --help and mistakes answer at once.
    if arguments and arguments[0] in COMMANDS:
        name = arguments[0]
        options = parser_of(name).parse_args(arguments[1:])
        check_outputs(options)
        check_room()
        _start_ahead(options)
        with exit_on_interrupt():
            command = importlib.import_module(BODIES.get(name, f"app.commands.{name}"))
        code: int = getattr(command, name)(options)
        return code
    if arguments and not arguments[0].startswith("-"):
        hint = suggestion(arguments[0], COMMANDS)
        raise UserError(f"unknown command {arguments[0]!r}: there are {', '.join(COMMANDS)}{hint} (see main.py --help)")
    options = run_parser().parse_args(arguments)
    check_outputs(options)
    check_room()
    _start_ahead(options)
    watch = Stopwatch()
    with exit_on_interrupt():
        import numpy  # noqa: F401 - here so that its time is booked by itself

        watch.lap("numpy")
        from app.main_job import run

        watch.lap("import")
    return run(options, watch)


def _start_ahead(options: argparse.Namespace) -> None:
    """Have the processes start that read what the options name, as far as it is HDF5."""
    named = [value for name in ("weights", "data", "resume") if (value := getattr(options, name, None)) is not None]
    if named:
        from app.files.hdf5_start import start_ahead

        start_ahead(named)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return guarded(lambda: dispatch(sys.argv[1:] if arguments is None else arguments))
