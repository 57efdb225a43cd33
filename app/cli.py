"""Run a command from the command line, and report its errors."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.base.clock import Stopwatch
from app.base.errors import UserError, did_you_mean_hint, print_to_stderr
from app.base.interrupts import exit_on_interrupt
from app.base.processor import check_address_space
from app.commands.parsers import COMMANDS, command_module, load_parser, make_request, python_identifier
from app.cuda.cards import create_context_in_background, select_visible_device
from app.engine.request import RunRequest
from app.files.reading import is_hdf5
from app.terminal.console import run_guarded
from app.terminal.output import check_outputs

# Commands whose own process uses the current GPU, if there is one.
ON_THE_FIRST_GPU = ("run", "predict", "evaluate", "accuracy")


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit code. Raises UserError."""
    # Imports are deferred so that --help and mistakes answer at once.
    name, rest = "run", arguments
    if arguments and not arguments[0].startswith("-"):
        name, rest = arguments[0], arguments[1:]
        if name not in COMMANDS:
            known, hint = ", ".join(COMMANDS), did_you_mean_hint(name, COMMANDS)
            raise UserError(f"unknown command {name!r}: there are {known}{hint} (see main.py --help)")
    options = load_parser(name).parse_args(rest)
    check_outputs(vars(options))
    check_address_space()
    # Start the processes that read the HDF5 files that the options name.
    named = [vars(options).get(key) for key in ("weights", "data", "resume")]
    files = sum(isinstance(path, Path) and is_hdf5(path) for path in named)
    if files:
        from app.files.hdf5_start import start_children_early

        start_children_early(files)
    request = make_request(name, options)
    if hasattr(request, "device"):
        with exit_on_interrupt():
            request = replace(request, device=select_visible_device(request.device))
        if request.device != "cpu" and sys.stderr.isatty():  # a second may pass before the next output
            print_to_stderr("looking for a GPU" if request.device == "auto" else "starting the GPU")
    if name in ON_THE_FIRST_GPU and request.device != "cpu":
        create_context_in_background()
    if name == "run":
        watch = Stopwatch()
        run = _import_main_job(watch)
        return run(request, watch)
    with exit_on_interrupt():
        command = importlib.import_module(f"{__package__}.{command_module(name)}")
    code: int = getattr(command, python_identifier(name))(request)
    return code


def _import_main_job(watch: Stopwatch) -> Callable[[RunRequest, Stopwatch], int]:
    """Return the function of the main job, and record the time of importing it."""
    with exit_on_interrupt():
        import numpy  # noqa: F401 - here so that its time is booked by itself

        watch.lap("numpy")
        from app.main_job.job import run

        watch.lap("import")
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_guarded(partial(dispatch, sys.argv[1:] if arguments is None else arguments))
