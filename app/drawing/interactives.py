"""The three interactives of the pages: HTML that can be read without its script, and the script in a file beside it.

They need no server: they run in a page opened from a file. The fragments need the style sheets of ``styles``.
"""

from pathlib import Path

from app.drawing.svg import style

FOLDER = Path(__file__).with_name("scripts")
INTERACTIVES = ("windows", "start_address", "split")


def styles() -> str:
    """Return the style sheet that a page with charts and interactives needs."""
    return f"{style()}{(FOLDER / 'interactive.css').read_text(encoding='utf-8')}"


def fragment(name: str, folder: str = "scripts") -> str:
    """Return one interactive as HTML. folder: the scripts' address relative to the page."""
    html = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    return f'{html}<script src="{folder}/{name}.js" defer></script>\n'


def scripts() -> dict[str, str]:
    """Return file name → text of the scripts, to be written into the folder that fragments name."""
    return {f"{name}.js": (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in INTERACTIVES}
