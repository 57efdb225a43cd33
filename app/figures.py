"""Draw and save figures with matplotlib; check their folder before the work starts."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.errors import UserError, install
from app.files.reading import first_bytes, present
from app.files.writing import replacing

DPI = 110
PNG = b"\x89PNG\r\n\x1a\n"


def check(folder: Path) -> None:
    """Raise UserError where ``folder`` cannot be made or written to; leave no trace."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with _told(folder), tempfile.TemporaryFile(dir=existing):
        pass


def prepare(folder: Path) -> None:
    """Check that pictures can be drawn, before the work, and make the folder. Raises UserError without matplotlib.

    Call it where nothing else is missing, such as a GPU: a package should be the last thing to install.
    """
    require_matplotlib()
    check(folder)
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)


def require_matplotlib() -> None:
    """Raise UserError without matplotlib."""
    try:
        from matplotlib import figure  # noqa: F401
    except ImportError:
        raise UserError(f"--plot needs matplotlib: {install('plot')}") from None


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--plot {folder} cannot be written: {error.strerror}; name a folder that you can write to"
        ) from error


def figure_of(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """Make a matplotlib figure, ``width`` by ``height`` inches, with ``columns`` axes in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def save(figure: Any, path: Path, texts: Mapping[str, str] | None = None) -> Path:
    """Write a figure as PNG and return the path. texts: the PNG's text fields, by keyword.

    Raises UserError if it cannot be written, or if the name belongs to a file that is not a picture.
    """
    if present(path) and first_bytes(path, len(PNG)) not in (b"", PNG):
        raise UserError(f"{path} already exists and is not a picture: remove it, or name another --plot folder")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata=texts)
    return path
