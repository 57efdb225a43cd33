"""Plain text for people: tables, fields and paragraphs that fit the terminal, and numbers of a few figures."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 80
"""Columns of the narrowest terminal that is written for, and of output that goes to a file."""
UNLIMITED = 1 << 20
INDENT = "  "
LEAST = 12  # characters that remain of a cell that is cut


@dataclass(frozen=True)
class Column:
    """A table's column. left: aligned left (text) instead of right (numbers).

    optional: 0 for a column that is always shown; of the others, those with the highest number are left out first
    where the line is too short.
    """

    head: str
    left: bool = False
    optional: int = 0


def terminal_width(wide: bool = False) -> int:
    """Columns that a line may fill: the terminal's, at least ``WIDTH``; without limit for ``--wide``."""
    return UNLIMITED if wide else max(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Aligned lines: the heads, then one for each row of cells.

    A row may end early: its last cell is then a remark that runs over the columns that are missing, and is wrapped. So
    is the last column, if it is a left one. Columns that find no room are named in a last line.
    """
    rows = [*rows]
    shown = [*range(len(columns))]
    dropped: list[str] = []
    while True:
        widths = _widths(columns, rows, shown)
        excess = len(INDENT) + sum(widths) + 2 * (len(widths) - 1) - width
        optional = max(shown, key=lambda index: columns[index].optional)
        if excess <= 0 or not columns[optional].optional:
            break
        shown.remove(optional)
        dropped.append(columns[optional].head)
    cut = [place for place, index in enumerate(shown) if columns[index].left]
    while excess > 0 and cut and (widest := max(cut, key=widths.__getitem__)) is not None and widths[widest] > LEAST:
        widths[widest] -= 1
        excess -= 1
    lines = _line([columns[index].head for index in shown], widths, columns, shown, width)
    for row in rows:
        cells = [row[index] for index in shown if index < len(row)]
        if len(row) < len(columns) and len(row) - 1 not in shown:
            cells.append(row[-1])  # the remark outlives its column
        lines += _line(cells, widths, columns, shown, width)
    if dropped:
        lines += paragraph(f"(--wide adds: {', '.join(dropped)})", width, INDENT)
    return lines


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    """Each shown column's width. Remarks take none, and a last left column only its longest word's."""
    found = []
    for index in shown:
        cells = [row[index] for row in rows if index < len(row) - (len(row) < len(columns))]
        if index == len(columns) - 1 and columns[index].left:
            cells = [word for cell in cells for word in cell.split()]
        found.append(max(map(len, [columns[index].head, *cells])))
    return found


def _line(
    cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column], shown: Sequence[int], width: int
) -> list[str]:
    """One row; more lines than one if its last cell is wrapped."""
    text = INDENT
    for place, cell in enumerate(cells):
        column, own = columns[shown[place]], widths[place]
        wrapped = place == len(cells) - 1 and (
            place < len(shown) - 1 or (column.left and shown[place] == len(columns) - 1)
        )
        if wrapped:
            return paragraph(cell, width, text, " " * min(len(text), width // 2)) if cell else [text.rstrip()]
        if len(cell) > own:
            cell = f"{cell[: own - 1]}…"
        text += (cell.ljust(own) if column.left else cell.rjust(own)) + INDENT
    return [text.rstrip()]


def fields(pairs: Iterable[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """Name and value, a line each; values are aligned, and wrapped under themselves."""
    pairs = [*pairs]
    widest = max((len(name) for name, _ in pairs), default=0)
    return [
        line
        for name, value in pairs
        for line in paragraph(value, width, f"{INDENT}{name.ljust(widest)}{INDENT}", " " * (widest + 2 * len(INDENT)))
    ]


def paragraph(text: str, width: int = WIDTH, first: str = "", following: str | None = None) -> list[str]:
    """The text in lines of at most ``width`` characters, words whole; ``first`` and ``following`` begin the lines."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if following is None else following,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def format_ms(ms: float | None) -> str:
    """Milliseconds to three figures or more; empty where there is no time."""
    if ms is None:
        return ""
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 10 else f"{ms:.4f}"


def format_factor(factor: float | None) -> str:
    """A ratio such as ``2.31`` (times as fast) to two figures or more; empty where there is none."""
    if factor is None:
        return ""
    if factor < 0.1:
        return f"{factor:.1g}"
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.1f}" if factor >= 10 else f"{factor:.2f}"
