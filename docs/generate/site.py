"""``python -m docs.generate.site FOLDER``: write the pages of the ladder for the card whose figures are stored."""

from pathlib import Path

from app.base.interrupts import exit_with
from app.files.reading import present, read_json
from app.ladder.card import SHOWN, Card
from app.ladder.site import write_site
from app.ladder.stored import way_in
from app.terminal.console import Parser, guarded
from docs.generate.figures import (
    CHECK_REPORT,
    COUNTERS,
    FIGURES,
    INSTRUCTIONS,
    REPORTS,
    RESOURCES,
    TIMELINES,
    Figures,
)
from docs.generate.records import write_schemas

COMMAND = "make docs"


def stored_card(folder: Path = FIGURES) -> Card:
    """Return the card whose figures are in the folder. Raises UserError."""
    figures = Figures(folder)
    return Card(
        {network: figures.bench(network).document for network in SHOWN},
        {**figures[RESOURCES], **figures[INSTRUCTIONS]},
        {network: figures[name] for network, name in COUNTERS.items() if present(folder / name)},
        {precision: read_json(folder / name, CHECK_REPORT, "make it again") for precision, name in REPORTS.items()},
        {precision: figures[name] for precision, name in TIMELINES.items() if present(folder / name)},
    )


def main() -> int:
    """Run the program. Returns its exit code."""
    parser = Parser(
        prog="python -m docs.generate.site", description="Write the pages of the ladder and the JSON Schemas."
    )
    parser.add_argument("folder", type=Path, help="where to; an earlier site there is replaced")
    folder = parser.parse_args().folder
    files = [*write_site(folder, stored_card(), COMMAND, way_in()), *write_schemas(folder / "schemas")]
    size = sum(path.stat().st_size for path in files)
    print(f"{folder / 'index.html'}: {len(files)} files, {size / 1e6:.1f} MB; open it in a browser")
    return 0


if __name__ == "__main__":
    exit_with(guarded(main))
