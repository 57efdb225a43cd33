"""Parts of the pages' drawings, as SVG. The style sheet has the colours, for light, dark and print."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

GAP = 12


@dataclass(frozen=True)
class Sizes:
    """A drawing's sizes by name, and its words."""

    numbers: Mapping[str, int]
    words: Mapping[str, str]

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


@dataclass
class Drawing:
    """A picture that grows: shapes in order, and the room that they take. summary: the alternative text.

    keys: class of a shape → what such shapes are, for the legend.
    """

    summary: str
    keys: dict[str, list[str]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def _takes(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def cells(self, x: float, y: float, rows: int, columns: int, cell: float, kind: str = "plain") -> None:
        """Draw a grid of squares; ``kind`` is its class."""
        width, height = columns * cell, rows * cell
        across = "".join(f"M{x:g} {y + row * cell:g}h{width:g}" for row in range(1, rows))
        down = "".join(f"M{x + column * cell:g} {y:g}v{height:g}" for column in range(1, columns))
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>')
        if cell >= 4:
            self.parts.append(f'<path class="cells" d="{across}{down}"/>')
        self._takes(x + width, y + height)

    def area(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """Mark a rectangle; ``title`` says what it is, also in the legend."""
        if title and title not in self.keys.setdefault(kind, []):
            self.keys[kind].append(title)
        told = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">{told}</rect>'
        )
        self._takes(x + width, y + height)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')
        room = 6.6 * len(words)
        self._takes(x + (room if anchor == "start" else room / 2 if anchor == "middle" else 0), y + 4)

    def lines_of_text(self, x: float, y: float, lines: Sequence[str], kind: str = "") -> None:
        """Write lines below one another."""
        for number, words in enumerate(lines):
            self.text(x, y + 17 * number, words, kind)

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw an arrow."""
        self.parts.append(f'<path class="arrow" marker-end="url(#tip)" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')
        self._takes(max(x, to_x) + 4, max(y, to_y) + 4)

    def svg(self) -> str:
        """Return the picture."""
        arrows = any("url(#tip)" in part for part in self.parts)
        width, height = self.width + GAP, self.height + GAP
        tip = (  # an id, which a page with two drawings may have once: none but tiles have arrows
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
        )
        size = f'viewBox="-2 -2 {width:g} {height:g}" style="width:{width:g}px"'
        return f'<svg role="img" {size} aria-label="{escape(self.summary)}">{tip * arrows}{"".join(self.parts)}</svg>'
