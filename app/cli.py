"""The command line: selects and runs a command, and reports its errors."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.commands.options.common import COMMANDS, identifier, parser_of, request_of
from app.console import guarded
from app.cuda.cards import select
from app.errors import UserError, suggestion
from app.interrupts import exit_on_interrupt
from app.output import check_outputs
from app.processor import check_room
from app.runtime.request import RunRequest
from app.runtime.startup import Stopwatch

# Command → the module with its body, a function of the command's name, for commands outside app/commands.
BODIES = {
    "bench": "bench.ladder.job",
    "check": "bench.check.job",
    "ladder": "lessons.command",
    "sweep": "bench.sweep.job",
    "profile": "bench.profile.job",
    "train": "training.command",
    "evaluate": "evaluate.command",
    "classify": "classify.command",
}


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; returns the exit code. Raises UserError."""
    # Imports are deferred so that --help and mistakes answer at once.
    name, rest = "run", arguments
    if arguments and not arguments[0].startswith("-"):
        name, rest = arguments[0], arguments[1:]
        if name not in COMMANDS:
            known, hint = ", ".join(COMMANDS), suggestion(name, COMMANDS)
            raise UserError(f"unknown command {name!r}: there are {known}{hint} (see main.py --help)")
    options = parser_of(name).parse_args(rest)
    check_outputs(vars(options))
    check_room()
    # Start the processes that read the HDF5 files that the options name.
    named = [path for key in ("weights", "data", "resume") if isinstance(path := vars(options).get(key), Path)]
    if named:
        from app.files.hdf5_start import start_ahead

        start_ahead(named)
    request = request_of(name, options)
    if hasattr(request, "device"):
        with exit_on_interrupt():
            request = replace(request, device=select(request.device))
    if name == "run":
        return _main_job(request)
    with exit_on_interrupt():
        command = importlib.import_module(f"{__package__}.{BODIES.get(name, f'commands.{identifier(name)}')}")
    code: int = getattr(command, identifier(name))(request)
    return code


def _main_job(request: RunRequest) -> int:
    watch = Stopwatch()
    with exit_on_interrupt():
        import numpy  # noqa: F401 - here so that its time is booked by itself

        watch.lap("numpy")
        from app.main_job import run

        watch.lap("import")
    return run(request, watch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    return guarded(lambda: dispatch(sys.argv[1:] if arguments is None else arguments))
