"""Check the output files of a command before it starts, so that no result is lost, and write them at the end."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files import shipped
from app.files.writing import json_text, replace_atomically
from app.terminal.console import colour_verdicts
from app.terminal.options import option
from app.terminal.text import terminal_width

D = TypeVar("D", bound=Mapping[str, object])
INPUTS = (
    *("weights", "data", "labels", "against", "resume", "start", "teacher"),
    *("file", "symbol", "paths", "shards", "before", "after"),
)
OUTPUTS = ("out", "show", "html", "json", "trace", "timeline", "init", "record")
POSITIONAL = {"before": "BEFORE", "file": "FILE", "paths": "PATH", "shards": "SHARD"}
NO_FILE = {"json": "-", "labels": "none", "out": "-", "paths": "-"}  # option → a value that names no file
OVERWRITE = "replace the files that this command writes, if they exist"


class Output(Frozen, kw_only=True):
    """Options of every command for how and where it writes its result."""

    json: str | None = option("also write {what} to FILE as JSON; '-' prints only the JSON", metavar="FILE")
    overwrite: bool = option(OVERWRITE, False)
    wide: bool = option("print every column of the tables, even beyond the terminal's width", False)


def check_outputs(options: Mapping[str, object]) -> None:
    """Raise UserError if an output cannot be written, is also an input, or would replace a file without --overwrite.

    options: name → value, None if not given.
    """
    written = _option_files(options, OUTPUTS)
    for name, path in written:
        if str(path) == "-":  # a file of this name would surprise: for other options it is standard output
            raise UserError(f"--{name} -: standard output takes no such file; name a file")
        check_writable(path, f"--{name}")
    named = [
        (f"{POSITIONAL.get(name, f'--{name}')} {path}", path) for name, path in written + _option_files(options, INPUTS)
    ]
    for at, (name, path) in enumerate(written):
        for other, read in named[at + 1 :]:
            if is_same_file(path, read):
                raise UserError(f"--{name} {path} is the same file as {other}: name different files")
    resumed = options.get("resume")
    for name, path in written:
        # A resumed training recognises the files that it has written.
        if (
            (name == "init" or not options.get("overwrite"))
            and os.path.lexists(path)
            and not (name == "out" and resumed)
        ):
            remedy = "remove it first" if resumed or name == "init" else "replace it with --overwrite"
            raise UserError(f"{path} exists: name another --{name}, or {remedy}")
    if options.get("overwrite") and not written and "resume" not in options:  # other commands have default files
        raise UserError("--overwrite replaces files that are named: name one, as with --json FILE, or leave it out")


def check_writable(path: Path, option: str) -> None:
    """Raise UserError if the file belongs to the project or is not writable. option: for errors, such as ``--json``."""
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


def _option_files(options: Mapping[str, object], names: Iterable[str]) -> list[tuple[str, Path]]:
    """Return (option, path) of each file given by an option in ``names``. options: name → path, paths or None."""
    given = [(name, options.get(name)) for name in names]
    each = [(name, one) for name, value in given for one in (value if isinstance(value, list) else [value])]
    return [(name, Path(str(value))) for name, value in each if value not in (None, NO_FILE.get(name))]


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether both paths are the same file after all links, or will be once it is written."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return os.path.realpath(one) == os.path.realpath(other)


def write_json(report: Mapping[str, object], path: Path | None, *, overwrite: bool = True) -> None:
    """Write the report as JSON to the file, atomically, or to standard output if ``path`` is None. Raises UserError."""
    text = json_text(report)
    if path is None:
        sys.stdout.write(text)
        return
    with replace_atomically(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def publish_report(report: D, text: Callable[[D, int], str], output: Output) -> None:
    """Print the report as text, and write it as JSON if ``output.json`` names a file; '-' prints the JSON instead.

    text: function of the report and the line width that returns the text.
    """
    if output.json != "-":
        print(colour_verdicts(text(report, terminal_width(output.wide))))
    if output.json is not None:
        write_json(report, None if output.json == "-" else Path(output.json), overwrite=output.overwrite)
