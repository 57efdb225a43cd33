"""Format plain text: tables, fields and paragraphs that fit the terminal, and numbers with few digits."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from app.base.frozen import Frozen

WIDTH = 80
"""Columns of output to a file."""
NARROWEST = 60
"""Columns of the narrowest supported terminal."""
UNLIMITED = 1 << 20
INDENT = "  "
LEAST = 12  # characters; no cell is wrapped into narrower lines


class Column(Frozen):
    """One column of a table. head: its heading. left: align left (for text) instead of right (for numbers).

    optional: 0 for a column that is always shown; a narrow table omits the columns with the highest number first.
    """

    head: str
    left: bool = False
    optional: int = 0


def terminal_width(wide: bool = False) -> int:
    """Return the most characters of a line: the terminal's width, at least ``NARROWEST``; with ``wide``, no limit."""
    return UNLIMITED if wide else max(NARROWEST, shutil.get_terminal_size((WIDTH, 0)).columns)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return the lines of a table with aligned cells; left-aligned cells wrap.

    rows: cells of each row. If they are fewer than the columns, the last cell extends over the missing ones. width:
    characters of a line. A left-aligned last column takes the remaining width. Columns that do not fit are omitted, and
    named in the last line. A column without any text is omitted.
    """
    rows = [*rows]
    filled = {index for row in rows for index, cell in enumerate(row) if cell}
    shown = [index for index in range(len(columns)) if index in filled or not filled]
    dropped: list[str] = []
    while True:
        widths = _column_widths(columns, rows, shown)
        excess = len(INDENT) + sum(widths) + 2 * (len(widths) - 1) - width
        optional = max(shown, key=lambda index: columns[index].optional)
        if excess <= 0 or not columns[optional].optional:
            break
        shown.remove(optional)
        dropped.append(columns[optional].head)
    left = [place for place, index in enumerate(shown) if columns[index].left]
    while excess > 0 and left and (widest := max(left, key=widths.__getitem__)) is not None and widths[widest] > LEAST:
        widths[widest] -= 1
        excess -= 1
    lines = _format_row([columns[index].head for index in shown], None, widths, columns, shown, width)
    for row in rows:
        ends = len(row) < len(columns)
        cells = [row[index] for index in shown if index < len(row) - ends]
        lines += _format_row(cells, row[-1] if ends else None, widths, columns, shown, width)
    if dropped:
        lines += paragraph(f"(--wide adds: {', '.join(dropped)})", width, INDENT)
    return lines


def _column_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    """Return the length of each shown column's longest cell or, for a left-aligned last column, of its longest word.

    shown: indices of columns. In a row with fewer cells than columns, the last cell spans the rest and does not count.
    """
    found = []
    for index in shown:
        cells = [row[index] for row in rows if index < len(row) - (len(row) < len(columns))]
        if index == len(columns) - 1 and columns[index].left:
            cells = [word for cell in cells for word in cell.split()]
        found.append(max(map(len, [columns[index].head, *cells])))
    return found


def _format_row(
    cells: Sequence[str],
    remark: str | None,
    widths: Sequence[int],
    columns: Sequence[Column],
    shown: Sequence[int],
    width: int,
) -> list[str]:
    """Return the lines of one row of a table; there are several if the text of a cell wraps.

    widths: width of each shown column. shown: indices of these columns in ``columns``. width: limit of a line. remark:
    last cell of a row with fewer cells than columns, which fills the rest of the line; None for a full row.
    """
    blocks: list[list[str]] = []
    below: list[str] = []  # lines of a last cell with a word too long for the rest of the line
    room = width - len(INDENT)
    last = remark
    for cell, cell_width, index in zip(cells, widths, shown, strict=False):
        if columns[index].left and index == len(columns) - 1:
            last = cell
            break
        parts = _LineWrapper(cell_width).wrap(cell) if columns[index].left else [cell.rjust(cell_width)]
        blocks.append([part.ljust(cell_width) for part in parts or [""]])
        room -= cell_width + len(INDENT)
    if last is not None:
        if max(map(len, last.split()), default=0) <= room:
            blocks.append(_LineWrapper(max(room, 1)).wrap(last) or [""])
        else:
            below = [" " * (width // 2) + part for part in _LineWrapper(width - width // 2).wrap(last)]
    for block in blocks:
        block += [" " * len(block[0])] * (max(map(len, blocks)) - len(block))
    return [(INDENT + INDENT.join(parts)).rstrip() for parts in zip(*blocks, strict=True)] + below


class _LineWrapper(textwrap.TextWrapper):
    """Break lines at spaces and within the joined names of layers: ``conv1+relu1+pool1``."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=\w\+)(?=\w))")

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(width, break_on_hyphens=False, **settings)


def fields(pairs: Iterable[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """Return a line for each (name, value) pair, with aligned values; a long value continues below its start."""
    pairs = [*pairs]
    widest = max((len(name) for name, _ in pairs), default=0)
    return [
        line
        for name, value in pairs
        for line in paragraph(value, width, f"{INDENT}{name.ljust(widest)}{INDENT}", " " * (widest + 2 * len(INDENT)))
    ]


def paragraph(text: str, width: int = WIDTH, first: str = "", following: str | None = None) -> list[str]:
    """Wrap text into lines of at most ``width`` characters. ``first`` begins the first line, ``following`` the rest."""
    following = first if following is None else following
    wrapper = _LineWrapper(width, initial_indent=first, subsequent_indent=following, break_long_words=False)
    return wrapper.wrap(text) or [first.rstrip()]


def format_ms(ms: float | None) -> str:
    """Return milliseconds without the unit: four decimals below 10, otherwise at least four digits; empty for None."""
    if ms is None:
        return ""
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 10 else f"{ms:.4f}"


def format_factor(factor: float | None) -> str:
    """Return a ratio such as ``2.31`` (times as fast) with at least two digits, below 0.1 with one; empty for None."""
    if factor is None:
        return ""
    if factor < 0.1:
        return f"{factor:.1g}"
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.1f}" if factor >= 10 else f"{factor:.2f}"


def format_bytes(count: float) -> str:
    """Return a size such as ``31.2 MB``, in powers of 1,000."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def format_age(seconds: float) -> str:
    """Return a duration in the largest unit that it contains at least twice, such as ``5 min``."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
