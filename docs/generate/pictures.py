"""Draw the pictures of docs/images/ from the JSON files that the tables are made from.

Each picture stores the name and the hash of its JSON file, so that ``stale_pictures`` finds pictures of earlier runs.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.drawing import svg
from app.lab.bench import plots
from docs.generate.figures import BENCH, Figures

FOLDER = Path(__file__).parents[2] / "docs" / "images"
# Picture → its JSON file, and the function that draws it.
PICTURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "h100_lenet5_ladder.svg": (BENCH["lenet5"], plots.ladder_chart),
    "h100_lenet5_roofline_conv1.svg": (BENCH["lenet5"], partial(plots.roofline_chart, item="conv1")),
    "h100_lenet5_roofline_conv2.svg": (BENCH["lenet5"], partial(plots.roofline_chart, item="conv2")),
    "h100_lenet5_batches.svg": (BENCH["lenet5"], plots.batch_size_chart),
}


def draw_pictures(figures: Path, folder: Path = FOLDER) -> list[Path]:
    """Draw all pictures into ``folder`` and return their paths. Raises UserError if a JSON file is missing or bad."""
    svg.create_chart_folder(folder)
    documents = Figures(figures)
    return [
        svg.save_chart(draw_one(documents[name]), folder / picture, picture_source_text(figures / name))
        for picture, (name, draw_one) in PICTURES.items()
    ]


def stale_pictures(figures: Path, folder: Path = FOLDER) -> list[str]:
    """Return the names of pictures that are missing, or drawn from another JSON file than that in ``figures``."""
    return [
        name
        for name, (json, _) in PICTURES.items()
        if svg.read_chart_source(folder / name) != picture_source_text(figures / json)
    ]


def picture_source_text(path: Path) -> str:
    """Return ``NAME sha256:HASH`` of a JSON file, to store in its picture. Raises UserError if it cannot be read."""
    try:
        return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it from the repository") from error
