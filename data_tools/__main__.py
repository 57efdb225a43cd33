"""Run ``python -m data_tools``: fetch, verify, describe and resize Fashion-MNIST; reduce and ship weights."""

import os
from collections.abc import Sequence

from app.base.interrupts import exit_ignoring_signals, exit_on_interrupt, install_exit_handlers
from app.base.processor import check_address_space
from app.terminal.console import run_guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, or 2 for an error that the user can correct."""
    return run_guarded(lambda: _load_and_run_command(arguments))


def _load_and_run_command(arguments: Sequence[str] | None) -> int:
    # Load NumPy here and not at the top, so that too little memory for it is an error of one line.
    check_address_space()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in main.py
    with exit_on_interrupt():
        from data_tools.commands import run_command
    return run_command(arguments)


if __name__ == "__main__":
    install_exit_handlers()
    exit_ignoring_signals(main())
