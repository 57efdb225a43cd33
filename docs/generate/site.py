"""Write the HTML pages of the ladder, with the stored figures: ``python -m docs.generate.site FOLDER``."""

from pathlib import Path

from app.base.errors import print_to_stderr
from app.base.interrupts import exit_ignoring_signals
from app.ladder.card import EXAMPLE
from app.ladder.pages import write_site
from app.ladder.playground import REMEDY, find_test_images, playground_page
from app.ladder.stored import introduction_pages, load_stored_card
from app.terminal.console import Parser, run_guarded
from docs.generate.records import write_schemas

COMMAND = "make docs"


def main() -> int:
    """Write the pages and JSON Schemas into the folder given on the command line. Return 0. Raises UserError."""
    parser = Parser(
        prog="python -m docs.generate.site",
        description="Write the pages of the ladder, the playground and the JSON Schemas.",
    )
    parser.add_argument("folder", type=Path, help="where to; an earlier site there is replaced")
    folder = parser.parse_args().folder
    samples = find_test_images()
    if samples is None:
        print_to_stderr(f"note: the playground has no test images: {REMEDY.replace('`', '')}")
    more = [*introduction_pages(), playground_page(samples)]
    files = [*write_site(folder, load_stored_card(EXAMPLE), COMMAND, more), *write_schemas(folder / "schemas")]
    size = sum(path.stat().st_size for path in files)
    print(f"{folder / 'index.html'}: {len(files)} files, {size / 1e6:.1f} MB; open it in a browser")
    return 0


if __name__ == "__main__":
    exit_ignoring_signals(run_guarded(main))
