"""The files that a command writes besides its main result. They are checked before the work, so that none is lost."""

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.files.reading import first_bytes, present
from app.network import shipped
from app.options import option

INPUTS = ("weights", "data", "labels", "against", "resume", "file", "symbol", "paths", "shards", "before", "after")
# Option → the first bytes of a file from an earlier run, which may be replaced. None: the command decides.
OUTPUTS = {
    "output": None,
    "out": None,
    "show": None,
    "html": None,
    "json": re.compile(rb'\Z|\{\s*"schema": "lenet5-inference/(?!receipt/|tuning/|old-reports/)'),  # files to read
    "trace": re.compile(rb'\Z|\{"traceEvents": '),
    "timeline": re.compile(rb"\Z|<!DOCTYPE html>\n<title>Timeline of "),
}
POSITIONAL = {"before": "BEFORE", "file": "FILE", "paths": "PATH", "shards": "SHARD"}
START_BYTES = 64
NO_FILE = {"json": "-", "labels": "none", "out": "-", "paths": "-"}  # option → a value that is not a file


def wide_option() -> Any:
    """Declare ``--wide``, for every command that prints tables."""
    return option("print every column of the tables, even beyond the terminal's width", False)


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a command publishes its result."""

    json: str | None = option("also write {what} to FILE as JSON; '-' prints only the JSON", metavar="FILE")
    wide: bool = wide_option()


def check_outputs(options: Mapping[str, object]) -> None:
    """Raise UserError if an output cannot be written, is also an input, or would replace a file of another kind.

    options: name → value, None if it was not given.
    """
    written = _files(options, OUTPUTS)
    for name, path in written:
        if str(path) == "-":  # it means standard output to other options: no file of that name is made unasked
            raise UserError(f"--{name} -: standard output takes no such file; name a file")
        check_writable(path, f"--{name}")
    named = [(f"{POSITIONAL.get(name, f'--{name}')} {path}", path) for name, path in written + _files(options, INPUTS)]
    for at, (name, path) in enumerate(written):
        for other, read in named[at + 1 :]:
            if same_file(path, read):
                raise UserError(f"--{name} {path} is the same file as {other}: name different files")
    for name, path in written:
        ours = OUTPUTS[name]
        if ours is not None and present(path) and not ours.match(first_bytes(path, START_BYTES)):
            raise UserError(
                f"--{name} {path} already exists, and no run of this program wrote it as --{name}: "
                "name another file, or remove it first"
            )


def check_new(path: Path, overwrite: bool, option: str = "--out") -> None:
    """Raise UserError if the option's file exists and ``--overwrite`` was not given."""
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{path} exists: name another {option}, or replace it with --overwrite")


def check_writable(path: Path, option: str) -> None:
    """Check before the work that ``path`` can be written.

    Raises UserError, naming ``option``, if it cannot become a file, or is a file that the project ships.
    """
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):  # writing would replace even a device by a file
                raise OSError(0, "it is not a regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        remedy = "name a file in a folder that you can write to"
        if option == "--json":
            remedy += ", or - for standard output"
        raise UserError(f"{option} {path} cannot be written: {error.strerror}; {remedy}") from error
    if shipped.is_shipped(path):
        raise UserError(f"{option} {path} is a file that the project ships in {shipped.FOLDER}: name another file")


def _files(options: Mapping[str, object], names: Iterable[str]) -> list[tuple[str, Path]]:
    """Return the files that these options name, each with its option."""
    given = [(name, options.get(name)) for name in names]
    each = [(name, one) for name, value in given for one in (value if isinstance(value, list) else [value])]
    return [(name, Path(str(value))) for name, value in each if value not in (None, NO_FILE.get(name))]


def same_file(one: Path, other: Path) -> bool:
    """Return whether both are one file, by whatever names or links; or would be, once they are written."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return os.path.realpath(one) == os.path.realpath(other)
