"""Write the site into a folder: static HTML that a browser opens from there, without a server or a network."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from app.base.errors import UserError, pip_install_command
from app.drawing import interactives
from app.ladder.card import Card
from app.ladder.pages import Pages
from app.ladder.pictures import Text, interactives_page, pictures_page

STATIC = Path(__file__).with_name("static")
NEEDED = {"jinja2": "Jinja2", "pygments": "Pygments", "markdown_it": "markdown-it-py"}  # module → package
MARK = "made-by-lenet5-inference"  # an empty file that marks a folder whose content may be replaced


def check_folder(folder: Path) -> None:
    """Raise UserError if a site cannot be written to the folder."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder: name another one")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UserError(f"{folder} holds other files than a site's: name an empty or new folder")
    for module, name in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"the pages need {name}: {pip_install_command('docs')}")


def write_site(folder: Path, card: Card, command: str, more: Sequence[Text] = ()) -> list[Path]:
    """Write all pages and the files that they load; return the paths. This replaces an earlier site in the folder.

    more: pages that come before the charts and interactives. Raises UserError, also for a folder that contains anything
    but a site.
    """
    check_folder(folder)
    made = [*Pages(card, command, [*more, pictures_page(card), interactives_page()]).all_pages()]
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(STATIC, unfinished)  # makes folders above it, too
        (unfinished / MARK).touch()
        (unfinished / "charts.css").write_text(interactives.page_style_sheet(), encoding="utf-8")
        (unfinished / "scripts").mkdir()
        for name, script in interactives.script_texts().items():
            (unfinished / "scripts" / name).write_text(script, encoding="utf-8")
        for page in made:
            (unfinished / f"{page.name}.html").write_text(page.html, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from None
    return sorted(path for path in folder.rglob("*") if path.is_file())
