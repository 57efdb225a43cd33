"""Write charts as SVG files, and check their folder before the work starts."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape, unescape
from pathlib import Path

from app.base.errors import UserError
from app.drawing import svg
from app.files.reading import first_bytes, may_exist
from app.files.writing import replace_atomically

START = svg.START.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')  # of every file that this writes


def check_chart_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` cannot be created or written to. It creates nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with _convert_os_errors(folder), tempfile.TemporaryFile(dir=existing):
        pass


def create_chart_folder(folder: Path) -> None:
    """Check the folder and create it. Raises UserError."""
    check_chart_folder(folder)
    with _convert_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _convert_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--plot {folder} cannot be written: {error.strerror}; name a folder that you can write to"
        ) from error


def save_chart(chart: str, path: Path, source: str = "") -> Path:
    """Write a chart as an SVG file and return the path. source: its data, for ``read_chart_source``.

    The file includes the style sheet for light backgrounds. Raises UserError if it cannot be written, or if the path is
    a file that is no chart of this program.
    """
    if may_exist(path) and first_bytes(path, len(START)) not in (b"", START.encode()):
        raise UserError(
            f"{path} already exists and is not a chart of this program: remove it, or name another --plot folder"
        )
    told = f"<metadata>{escape(source)}</metadata>\n" if source else ""
    head, described, drawn = chart.partition("</desc>\n")
    text = f"{head}{described}{told}<style>\n{svg.light_style_sheet()}</style>\n{drawn}\n".replace(svg.START, START, 1)
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def read_chart_source(path: Path) -> str | None:
    """Return the ``source`` stored in a saved chart; None if the file or the source is missing."""
    try:
        found = re.search(r"<metadata>(.*)</metadata>", path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    return found and unescape(found[1])
