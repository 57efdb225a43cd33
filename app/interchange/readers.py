"""Read a file of another system by the reader of its format."""

import importlib
from pathlib import Path

from app.base.errors import UserError
from app.files.checks import BadValueError
from app.files.formats import START_BYTES, recognise
from app.files.reading import read_file
from app.interchange.numbers import check_numbers
from app.interchange.source import Asked, Source
from app.network.foreign import FORMATS, Format
from app.network.weights import MAX_BYTES


def read(path: Path, asked: Asked) -> tuple[str, Source]:
    """Read the file: the name of its format, and its content. Raises UserError for every fault."""
    content = read_file(path, MAX_BYTES)
    found = _format(path, content[:START_BYTES])
    try:
        source: Source = importlib.import_module(f"{__package__}.{found.module}").read(content, asked)
        check_numbers(source.arrays)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    return found.name, source


def _format(path: Path, start: bytes) -> Format:
    """Choose by the kind of the content, else by the ending."""
    kind, name = recognise(start), path.name.lower()
    found = next((row for row in FORMATS if (row.kind == kind if kind else name.endswith(row.ending))), None)
    if found is None:
        known = ", ".join(f"{row.name} ({row.ending})" for row in FORMATS)
        raise UserError(f"{path} is {kind or 'of an unknown format'}; import reads {known}")
    return found
