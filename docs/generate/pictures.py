"""Draw the pictures of docs/images/ from the same JSON files as the tables.

A text field of each PNG holds the JSON file's name and hash, so pictures of other runs are detected without matplotlib.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app import figures as pictures
from app.bench.ladder import plots
from app.errors import UserError
from docs.generate.figures import BENCH, Figures

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SOURCE = "Source"  # a keyword from the PNG standard
# Picture → its JSON file, and the function that draws it.
PICTURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "h100_lenet5_ladder.png": (BENCH["lenet5"], plots.ladder),
    "h100_lenet5_roofline.png": (BENCH["lenet5"], plots.roofline),
    "h100_lenet5_batches.png": (BENCH["lenet5"], plots.batch_sizes),
}


def draw(figures: Path, folder: Path = FOLDER) -> list[Path]:
    """Draw all of them anew. Raises UserError without matplotlib, and for a JSON file that is missing or broken."""
    pictures.prepare(folder)
    documents = Figures(figures)
    return [
        pictures.save(draw_one(documents[name]), folder / picture, {SOURCE: source(figures / name)})
        for picture, (name, draw_one) in PICTURES.items()
    ]


def stale(figures: Path, folder: Path = FOLDER) -> list[str]:
    """Return the names of the pictures that are missing or show another run than the JSON file in ``figures``."""
    return [name for name, (json, _) in PICTURES.items() if not _is_of(folder / name, source(figures / json))]


def source(path: Path) -> str:
    """Return the text in pictures of that JSON file: ``NAME sha256:HASH``. Raises UserError."""
    try:
        return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it from the repository") from error


def _is_of(picture: Path, text: str) -> bool:
    """Return whether the picture exists and carries the text (PNG: chunk ``tEXt``, a keyword and 0, uncompressed)."""
    try:
        return f"tEXt{SOURCE}\0{text}".encode() in picture.read_bytes()
    except FileNotFoundError:
        return False
