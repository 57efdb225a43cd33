"""Provide the three interactives of the pages: HTML that is readable without its script, and the scripts.

They run in a page opened from a file, without a server. The HTML needs the style sheets of ``page_style_sheet``.
"""

from pathlib import Path

from app.drawing.svg import style_sheet

FOLDER = Path(__file__).with_name("scripts")
INTERACTIVES = ("windows", "start_address", "split")


def page_style_sheet() -> str:
    """Return the style sheet that a page with charts and interactives needs."""
    return f"{style_sheet()}{(FOLDER / 'interactive.css').read_text(encoding='utf-8')}"


def interactive_html(name: str) -> str:
    """Return one interactive as HTML, which loads its script from the folder ``scripts`` beside the page."""
    html = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    return f'{html}<script src="scripts/{name}.js" defer></script>\n'


def script_texts() -> dict[str, str]:
    """Return the text of each script by file name, to write into the folder ``scripts`` beside the page."""
    return {f"{name}.js": (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in INTERACTIVES}
