"""Draw freely: the picture grows to contain each shape that is added. The page's style sheet colours them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from app.drawing import svg

GAP, MARGIN = 12, 2
CELL = 4  # smallest side of a square, in pixels, whose grid lines are drawn
TIP = (  # defines the arrowhead; the id may occur once in a page, and only one drawing of a page has arrows
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f"{svg.path('M0 0L8 4L0 8z', 'tip')}</marker></defs>"
)


@dataclass
class Drawing:
    """A picture that grows to contain the shapes that are added to it. summary: the alternative text.

    keys: meanings of each class of shape, for the legend.
    """

    summary: str
    keys: dict[str, list[str]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def _grow_to_contain(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def add_grid(self, x: float, y: float, rows: int, columns: int, cell: float, kind: str = "plain") -> None:
        """Draw a grid of squares of side ``cell`` pixels; ``kind`` is its class."""
        width, height = columns * cell, rows * cell
        across = "".join(f"M{x:g} {y + row * cell:g}h{width:g}" for row in range(1, rows))
        down = "".join(f"M{x + column * cell:g} {y:g}v{height:g}" for column in range(1, columns))
        self.parts.append(svg.bar(x, y, width, height, kind))
        if cell >= CELL:
            self.parts.append(svg.path(f"{across}{down}", "cells"))
        self._grow_to_contain(x + width, y + height)

    def add_rectangle(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """Draw a rectangle; ``title`` says what it is, also in the legend."""
        if title and title not in self.keys.setdefault(kind, []):
            self.keys[kind].append(title)
        self.parts.append(svg.bar(x, y, width, height, kind, title))
        self._grow_to_contain(x + width, y + height)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write one line of text."""
        self.parts.append(svg.text(words, x, y, kind, anchor))
        self._grow_to_contain(
            x + svg.estimate_text_width(words, 11) * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + 4
        )

    def lines_of_text(self, x: float, y: float, lines: Sequence[str], kind: str = "") -> None:
        """Write lines of text below one another."""
        for number, words in enumerate(lines):
            self.text(x, y + 17 * number, words, kind)

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw an arrow."""
        self.parts.append(svg.path(f"M{x:g} {y:g}L{to_x:g} {to_y:g}", "arrow", ' marker-end="url(#tip)"'))
        self._grow_to_contain(max(x, to_x) + 4, max(y, to_y) + 4)

    def svg(self) -> str:
        """Return the SVG element."""
        tip = TIP * any("url(#tip)" in part for part in self.parts)
        size = svg.size_attributes(self.width + GAP, self.height + GAP, MARGIN)
        return f'<svg role="img" {size} aria-label="{escape(self.summary)}">{tip}{"".join(self.parts)}</svg>'
