"""How every program here meets its user: one-line errors, exit codes, and streams that may be closed."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from app.errors import UserError
from app.interrupts import INTERRUPTED

USER_ERROR = 2
OWN_PACKAGES = ("app", "data_tools", "tests")
BUG = 3  # not 1: that says that an accuracy check failed


class Parser(argparse.ArgumentParser):
    """Reports a wrong option as one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{' '.join(message.split())} (see {self.prog} --help)")


def guarded(body: Callable[[], int]) -> int:
    """Run a program's body and return its exit code.

    Whatever a user can put right ends as one line on standard error and code 2; anything else is a bug and ends
    as a traceback and code 3.
    """
    _prepare_streams()
    try:
        try:
            return body()
        finally:
            sys.stdout.flush()  # here, where its failure can be reported; also after --help
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
    except OSError as error:
        if error.filename is not None:
            traceback.print_exc()  # not standard output's
            return BUG
        # The reader of our output has gone, or the disk is full; nothing more may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"error: cannot write to standard output ({error.strerror}); send it elsewhere", file=sys.stderr)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in OWN_PACKAGES:
            traceback.print_exc()
            return BUG
        print(f"error: {error.name} is not installed here: run make run, then . .venv/bin/activate", file=sys.stderr)
    except Exception:
        traceback.print_exc()
        return BUG
    return USER_ERROR


def _prepare_streams() -> None:
    """Closed streams swallow what they are given; characters that an encoding lacks are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
