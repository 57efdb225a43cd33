"""Return the HTML, CSS and JavaScript of the three interactive drawings.

The HTML is readable without JavaScript. The scripts also run in a page that is opened from a file, without a server.
"""

from pathlib import Path

from app.drawing.svg import style_sheet

FOLDER = Path(__file__).with_name("scripts")
INTERACTIVES = ("windows", "start_address", "split")


def page_style_sheet() -> str:
    """Return the CSS of pages with charts and interactive drawings."""
    return f"{style_sheet()}{(FOLDER / 'interactive.css').read_text(encoding='utf-8')}"


def interactive_drawing_html(name: str) -> str:
    """Return the HTML of a drawing, which loads a script from the folder ``scripts``. name: one of ``INTERACTIVES``."""
    html = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    return f'{html}<script src="scripts/{name}.js" defer></script>\n'


def script_texts() -> dict[str, str]:
    """Return file name → text of each script; the folder ``scripts`` beside the page must contain these files."""
    return {f"{name}.js": (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in INTERACTIVES}
