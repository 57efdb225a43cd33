"""The three interactives of the pages: HTML that can be read without its script, and the script in a file beside it.

They need no server: they run in a page opened from a file. The fragments need the style sheets of ``page_style_sheet``.
"""

from pathlib import Path

from app.drawing.svg import style_sheet

FOLDER = Path(__file__).with_name("scripts")
INTERACTIVES = ("windows", "start_address", "split")


def page_style_sheet() -> str:
    """Return the style sheet that a page with charts and interactives needs."""
    return f"{style_sheet()}{(FOLDER / 'interactive.css').read_text(encoding='utf-8')}"


def interactive_html(name: str, folder: str = "scripts") -> str:
    """Return one interactive as HTML. folder: the scripts' address relative to the page."""
    html = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    return f'{html}<script src="{folder}/{name}.js" defer></script>\n'


def script_texts() -> dict[str, str]:
    """Return file name → text of the scripts, to be written into the folder that fragments name."""
    return {f"{name}.js": (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in INTERACTIVES}
