"""The pictures of docs/images/, drawn from the JSON files that the tables are made of; each names its file and hash.

The name stands in a text chunk of the PNG, so that a picture of another run than the tables' is found without
matplotlib.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app import figures as pictures
from app.bench.ladder import plots
from app.bench.stored_figures import BENCH, load
from app.errors import UserError

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
    """Names of the pictures that are not there, or show another run than the JSON file in ``figures``."""
    return [name for name, (json, _) in PICTURES.items() if told(folder / name) != source(figures / json)]


def source(path: Path) -> str:
    """What a picture of that file says of itself: ``NAME sha256:HASH``. Raises UserError if it cannot be read."""
    try:
        return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it from the repository") from error


def told(path: Path) -> str | None:
    """What the picture at that place says of itself; None if there is none, or if it says nothing."""
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
    """(type, content) of every whole chunk of a PNG file."""
    at = len(pictures.PNG) if data.startswith(pictures.PNG) else len(data)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length
