"""How every program here meets its user: one-line errors, exit codes, and streams that may be closed."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, cast

from app.errors import UserError
from app.files import checks
from app.interrupts import INTERRUPTED, interruptible

USER_ERROR = 2
OWN_PACKAGES = ("app", "data_tools", "tests")
TRACEBACK = "LENET_TRACEBACK"
MAX_SHOWN = 300  # characters of a bug's message
BUG = 3  # not 1: that says that an accuracy check failed


class Parser(argparse.ArgumentParser):
    """Reports a wrong option as one line, and an option that is given twice as wrong: one would silently win."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})
        self._given: set[str] = set()
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's."""
        self._given.clear()
        return super().parse_known_args(args, namespace)

    def note(self, option: str | None, action: argparse.Action) -> None:
        """Called as an option's value is taken; ``option`` is None for a positional argument. Raises UserError."""
        if option is not None and action.dest in self._given:
            self.error(f"argument {'/'.join(action.option_strings)}: given twice; say it once")
        self._given.add(action.dest)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{' '.join(message.split())} (see {self.prog} --help)")

    def print_help(self, file: Any = None) -> None:
        """Raises OSError where it cannot be written, which argparse passes over."""
        (file or sys.stdout).write(self.format_help())


class _Once(argparse.Action):
    """Stores an option's value, which is given once at most."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        cast(Parser, parser).note(option, self)
        setattr(namespace, self.dest, values)


class Switch(argparse.BooleanOptionalAction):
    """``--flip`` or ``--no-flip``, one of them once at most."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        cast(Parser, parser).note(option, self)
        super().__call__(parser, namespace, values, option)


def guarded(body: Callable[[], int]) -> int:
    """Run a program's body and return its exit code.

    Whatever a user can put right ends as one line on standard error and code 2; anything else is a bug and ends
    as one line, or as a traceback if $LENET_TRACEBACK is set, and code 3. What cannot be written to standard error
    changes nothing of that.
    """
    _prepare_streams()
    try:
        with interruptible():
            try:
                return body()
            finally:
                sys.stdout.flush()  # here, where its failure can be reported; also after --help
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
    except Exception as error:
        shortage = _shortage(error)
        if shortage is not None:
            print(f"error: {shortage}", file=sys.stderr)
            return USER_ERROR
        return _other(error)
    return USER_ERROR


def _shortage(error: Exception) -> str | None:
    """What this machine, or what it allows a process, has too little of, with the remedy; None for any other error."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) and error.filename is None else None
    unmapped = isinstance(error, ImportError) and ("cannot map" in text or "map segment" in text or "allocate" in text)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or unmapped:
        return "too little memory: free some, raise the limit (ulimit -v), or ask for fewer images or smaller files"
    if "can't start new thread" in text or number == errno.EAGAIN:
        return "no more threads or processes can be started: end some, or raise the limit (ulimit -u)"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: close some, or raise the limit (ulimit -n)"
    return None


def _other(error: Exception) -> int:
    """Report what is no shortage; returns the exit code."""
    if isinstance(error, OSError) and error.filename is None:
        # The reader of our output has gone, or the disk is full; nothing more may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"error: cannot write to standard output ({error.strerror}); send it elsewhere", file=sys.stderr)
        return USER_ERROR
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing and missing.partition(".")[0] not in OWN_PACKAGES:
        print(f"error: {missing} is not installed here: run make run, then . .venv/bin/activate", file=sys.stderr)
        return USER_ERROR
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
        return BUG
    what = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    told = " ".join(what.split())[:MAX_SHOWN]
    print(f"error: a bug in this program: {told}{where}; {TRACEBACK}=1 shows the traceback", file=sys.stderr)
    return BUG


class _Lenient(io.FileIO):
    """Drops what cannot be written: nobody could be told, and the exit code still says what happened."""

    def write(self, data: Any, /) -> int:
        """As FileIO, and all of it where that fails."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _prepare_streams() -> None:
    """Closed streams swallow what they are given; characters that an encoding lacks are escaped."""
    # A file that is opened later must not get a closed stream's number: the next message would go into it.
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is sys.__stderr__:  # not a test's
        encoding = None if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_Lenient(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


MAX_BATCH = 10**12


def whole_number(least: int, most: int = MAX_BATCH) -> Callable[[str], int]:
    """An argparse type: a whole number from ``least`` to ``most``."""
    return typed(int, "a whole number", checks.whole(least, most))


def number(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """An argparse type: a number from ``least`` (or only ``above`` it) up to ``most``."""
    return typed(float, "a number", checks.number(least, most, above))


def typed(kind: Callable[[str], Any], what: str, check: checks.Check) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}") from None
        try:
            return check(value)
        except checks.BadValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
