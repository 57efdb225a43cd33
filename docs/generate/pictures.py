"""The pictures of docs/images/, drawn from the JSON files that the tables are made of.

A text chunk of each PNG holds the JSON file's name and hash: a picture of another run is found without matplotlib.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app import figures as pictures
from app.bench.ladder import plots
from app.errors import UserError
from docs.generate.figures import BENCH, load

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SOURCE = "Source"  # one of the keywords that PNG names itself
# Picture → the JSON file that it shows, and what draws it.
PICTURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "h100_lenet5_ladder.png": (BENCH["lenet5"], plots.ladder),
    "h100_lenet5_roofline.png": (BENCH["lenet5"], plots.roofline),
    "h100_lenet5_batches.png": (BENCH["lenet5"], plots.batch_sizes),
}


def draw(figures: Path, folder: Path = FOLDER) -> list[Path]:
    """Draw all of them anew. Raises UserError without matplotlib, and for a JSON file that is missing or broken."""
    pictures.prepare(folder)
    return [
        pictures.save(draw_one(load(figures, name)), folder / picture, {SOURCE: source(figures / name)})
        for picture, (name, draw_one) in PICTURES.items()
    ]


def stale(figures: Path, folder: Path = FOLDER) -> list[str]:
    """Return the names of the pictures that are missing or show another run than the JSON file in ``figures``."""
    return [name for name, (json, _) in PICTURES.items() if source_of(folder / name) != source(figures / json)]


def source(path: Path) -> str:
    """Return the text that a picture of that JSON file carries: ``NAME sha256:HASH``. Raises UserError."""
    try:
        return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it from the repository") from error


def source_of(path: Path) -> str | None:
    """Return the text that the picture carries; None if there is no picture, or no such text in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    for kind, content in _chunks(data):
        keyword, _, text = content.partition(b"\0")
        if kind == b"tEXt" and keyword == SOURCE.encode():
            return text.decode("latin-1")
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (type, content) of every whole chunk of a PNG file."""
    at = len(pictures.PNG) if data.startswith(pictures.PNG) else len(data)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length
