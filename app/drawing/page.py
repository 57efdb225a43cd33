"""Build HTML pages of fields, tables and charts; a page needs no other file and no network connection."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from app.drawing.svg import style_sheet

STYLE = Path(__file__).with_name("page.css")
# The page may load nothing: names from a file stay text even if escaping failed.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return an HTML page: its title as the heading, then the parts, each of them HTML."""
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style_sheet()}{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "backslashreplace").decode()  # file names need not be UTF-8


def html_fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Return (name, text) pairs as an HTML list; empty without pairs."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in pairs)
    return f"<dl>\n{rows}</dl>" if rows else ""


def html_figure(picture: str) -> str:
    """Return HTML that shows an SVG chart, with a scroll bar if the page is narrower than the chart."""
    return f'<figure class="wide">\n{picture}\n</figure>'


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """Return an HTML table; "" without rows. sides: a letter per column, ``l`` for left or ``r`` for right."""
    kinds = [' class="number"' if side == "r" else "" for side in sides]
    head = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, heads, strict=True))
    lines = [
        f'<tr><th scope="row"{kinds[0]}>{escape(first)}</th>'
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], cells, strict=True))
        + "</tr>\n"
        for first, *cells in rows
    ]
    if not lines:
        return ""
    inner = f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>"
    return f'<div class="wide"><table>\n{inner}\n</table></div>'
