"""Parse command lines, report errors in one line, choose exit codes and make output streams robust."""

import argparse
import codecs
import errno
import io
import locale
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, cast

from app.base.errors import UserError, did_you_mean_hint, escape_unprintable
from app.base.interrupts import INTERRUPTED, raise_on_interrupt
from app.files import checks

USER_ERROR = 2
OWN_PACKAGES = (__name__.partition(".")[0], "data_tools", "tests")
TRACEBACK = "LENET_TRACEBACK"
MAX_SHOWN = 300  # the most characters of a bug's message that are printed
READER_GONE = (
    128 + signal.SIGPIPE
)  # exit code, as shells report it for other programs whose reader, such as head, has ended
BUG = 3  # not 1: that means a failed accuracy check


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter of help texts that leaves text of several lines unchanged and wraps any other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line, and refuses an option given twice (argparse ignores the first).

    The error for a mistyped option or choice suggests the nearest one. The epilog keeps its line ends. separator: an
    option that ``--`` abbreviates; other options may follow ``--``. None: ``--`` ends the options, as in argparse.
    """

    separator: str | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        shaped = {"formatter_class": _HelpFormatter} if "epilog" in settings else {}
        super().__init__(*arguments, **{"allow_abbrev": False, **shaped, **settings})
        self.suggest_on_error = False  # argparse's, from Python 3.14 on: ours is the same in every version
        self._given: set[str] = set()
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse unknown arguments and suggest the nearest option of this command."""
        self._given.clear()
        if self.separator is not None:
            args = [self.separator if word == "--" else word for word in args]
        found, unknown = super().parse_known_args(args, namespace)
        if self.separator is not None and self.separator not in args and not any(map(_is_option, unknown)):
            (files,) = self._get_positional_actions()  # file names between and after options belong to the one list
            getattr(found, files.dest).extend(self._get_value(files, word) for word in unknown)
            unknown = []
        if unknown:
            options = [word.partition("=")[0] for word in unknown if _is_option(word)]
            hint = did_you_mean_hint(options[0], self._option_string_actions) if options else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean_hint(str(value), map(str, action.choices or ()))
            raise

    def refuse_repeated_option(self, option: str | None, action: argparse.Action) -> None:
        """Raise UserError if the option was given before, else record it. option: None for a positional argument."""
        if option is not None and action.dest in self._given:
            remedy = getattr(action, "twice", "give it once")
            self.error(f"argument {'/'.join(action.option_strings)}: given twice; {remedy}")
        self._given.add(action.dest)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{' '.join(message.split())} (see {self.prog} --help)")

    def print_help(self, file: Any = None) -> None:
        """Print the help. Raise OSError if that fails; argparse would ignore the failure."""
        (file or sys.stdout).write(self.format_help())


def _is_option(word: str) -> bool:
    return word.startswith("-")


class _RefuseRepeated(argparse.Action):
    """Mixin for argparse actions that refuses an option that was given before."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        cast(Parser, parser).refuse_repeated_option(option, self)
        super().__call__(parser, namespace, values, option)


class _StoreOnce(_RefuseRepeated, argparse._StoreAction):
    pass


class Switch(_RefuseRepeated, argparse.BooleanOptionalAction):
    """Argparse action of an option with the forms ``--flip`` and ``--no-flip``, which may be given once."""


def run_guarded(body: Callable[[], int]) -> int:
    """Call ``body``, the main function of a program, and return its exit code; report errors.

    An error that the user can correct gives one line on standard error and exit code 2. Any other error is a bug: it
    gives one line, or a traceback if $LENET_TRACEBACK is set, and exit code 3. A failure to write to standard error
    does not change the exit code.
    """
    _prepare_streams()
    try:
        with raise_on_interrupt():
            try:
                return body()
            finally:
                sys.stdout.flush()  # flush here, where a failure can be reported; also after --help
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
    except Exception as error:
        return _report_error(error)
    return USER_ERROR


def _resource_shortage_text(error: Exception) -> str | None:
    """Return which resource or package is missing according to the error, and the remedy; None for other errors."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) and error.filename is None else None
    unmapped = isinstance(error, ImportError) and ("cannot map" in text or "map segment" in text or "allocate" in text)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or unmapped:
        return "too little memory: free some, raise the limit (ulimit -v), or use fewer images or smaller files"
    if "can't start new thread" in text or number == errno.EAGAIN:
        return "no more threads or processes can be started: end some, or raise the limit (ulimit -u)"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: close some, or raise the limit (ulimit -n)"
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing and missing.partition(".")[0] not in OWN_PACKAGES:
        return f"{missing} is not installed here: run make run, then . .venv/bin/activate"
    return None


def _report_error(error: Exception) -> int:
    """Print an error that is neither a UserError nor Ctrl-C; return the exit code."""
    if (shortage := _resource_shortage_text(error)) is not None:
        print(f"error: {shortage}", file=sys.stderr)
        return USER_ERROR
    if isinstance(error, OSError) and error.filename is None:
        # The reader of our output has gone, or the disk is full; nothing more may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        print(f"error: cannot write to standard output ({error.strerror}); send it elsewhere", file=sys.stderr)
        return USER_ERROR
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
        return BUG
    what = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    line = " ".join(what.split())[:MAX_SHOWN]
    print(f"error: a bug in this program: {line}{where}; {TRACEBACK}=1 shows the traceback", file=sys.stderr)
    return BUG


class _DroppingOutput(io.FileIO):
    """Output stream that drops text that it cannot write, so that the exit code still reports the outcome."""

    def write(self, data: Any, /) -> int:
        """Write the data, or drop it if that fails; return its length."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


# The non-ASCII characters of the output, and their replacements for encodings that lack them.
ASCII = {"×": "x", "→": "->", "←": "<-", "±": "+-", "…": "...", "≤": "<=", "≥": ">=", "–": "-", "·": "*", "÷": "/"}
PLAIN = "lenet-plain"  # name of the encoding error handler below


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Return the characters in ``error`` as ASCII, by the table ``ASCII`` or escaped, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking), error.end


codecs.register_error(PLAIN, _replace_unencodable)


def _is_ascii_locale() -> bool:
    """Return whether the locale allows only ASCII, although Python would write UTF-8."""
    overridden = any(name in os.environ for name in ("PYTHONIOENCODING", "PYTHONUTF8"))
    return not overridden and locale.nl_langinfo(locale.CODESET) == "ANSI_X3.4-1968"


GREEN, RED, USUAL = "\033[32m", "\033[31m", "\033[0m"


def colour_verdicts(text: str) -> str:
    """Colour PASSED green and FAILED red if standard output is a terminal that allows colours (no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return re.sub(r"\b(?:(PASSED)|FAILED)\b", lambda word: f"{GREEN if word[1] else RED}{word[0]}{USUAL}", text)


# What may reach a terminal besides printable characters: line ends, the words of ``colour_verdicts``, and a progress
# bar's carriage return.
_KEPT = re.compile(f"(\n|\\A\r|{re.escape(GREEN)}PASSED{re.escape(USUAL)}|{re.escape(RED)}FAILED{re.escape(USUAL)})")


class _EscapingStream(io.TextIOWrapper):
    """Text stream that escapes unprintable characters: file names must not control the terminal."""

    def write(self, text: str, /) -> int:
        """Write the text, with unprintable characters escaped; return its length."""
        if not text.isprintable():
            super().write(
                "".join(part if at % 2 else escape_unprintable(part) for at, part in enumerate(_KEPT.split(text)))
            )
        else:
            super().write(text)
        return len(text)


def _prepare_streams() -> None:
    """Set up standard output and error: discard output if closed, escape what is unprintable or not in the encoding."""
    # No file may get a closed stream's descriptor: the next message would be written into it.
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)
    if sys.stdout is sys.__stdout__:  # not a test's
        if sys.stdout is None:
            sys.stdout = _EscapingStream(open(1, "wb", closefd=False))  # noqa: SIM115 - for as long as the process lives
        else:
            usual = sys.stdout
            sys.stdout = _EscapingStream(
                usual.buffer, usual.encoding, line_buffering=usual.line_buffering, write_through=usual.write_through
            )
    if sys.stderr is sys.__stderr__:
        encoding = None if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_DroppingOutput(2, "w", closefd=False))
        sys.stderr = _EscapingStream(raw, encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ours = getattr(stream, "name", None) in ("<stdout>", 1, 2)  # not a test's
            stream.reconfigure(encoding="ascii" if ours and _is_ascii_locale() else None, errors=PLAIN)


MAX_BATCH = 10**12


def whole_number_type(least: int, most: int = MAX_BATCH) -> Callable[[str], int]:
    """Return an argparse type for whole numbers from ``least`` to ``most``."""
    return argparse_type(int, "a whole number", checks.whole_number_check(least, most))


def number_type(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """Return an argparse type for numbers from ``least`` to ``most``; with ``above``, ``least`` itself is refused."""
    return argparse_type(float, "a number", checks.number_check(least, most, above))


def argparse_type(kind: Callable[[str], Any], what: str, check: checks.Check) -> Callable[[str], Any]:
    """Return an argparse type: call ``kind``, such as float, then ``check``. what: "a number" in "is not a number"."""

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
