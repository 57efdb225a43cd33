"""Draw a grid of cells whose colours are stronger for greater values: alone, or with axes as a heat map."""

from collections.abc import Iterator, Mapping, Sequence

from app.base.frozen import Frozen
from app.drawing import svg

FULL = 0.75  # opacity of the strongest cell, so that numbers stay readable
WIDTH, HEIGHT, TOP = 66, 34, 76  # of a heat map's cell; space above the first
Times = Mapping[tuple[int, int], float]  # (value down, value across) → ms


class Cell(Frozen):
    """A cell of a grid. kind: CSS classes. strength: of its colour, 0 to 1. text: written in the cell."""

    strength: float
    text: str
    tooltip: str
    kind: str = "c2 full"


def draw_cells(
    grid: Sequence[Sequence[Cell | None]], left: float, top: float, width: float, height: float
) -> Iterator[str]:
    """Yield the SVG of a grid, row by row from (left, top). width, height: of a cell. None: an empty cell."""
    for row, line in enumerate(grid):
        for column, cell in enumerate(line):
            if cell is None:
                continue
            x, y = left + column * width, top + row * height
            yield svg.bar(x, y, width, height, cell.kind, cell.tooltip, f' fill-opacity="{FULL * cell.strength:.3f}"')
            if cell.text:
                yield svg.text(cell.text, x + width / 2, y + height / 2 + 4, anchor="middle")


def draw_heat_map(title: str, down: str, across: str, ms: Times, name: str = "heat") -> str:
    """Return a heat map of times as SVG; a frame marks the shortest one. down, across: labels of the axes.

    ms: (value on the axis down, value on the axis across) → time. Without its label, the axis down shows no values.
    """
    times = dict(sorted(ms.items()))
    best = min(times, key=lambda where: times[where])
    low, high = times[best], max(times.values())
    downs, acrosses = (sorted({where[axis] for where in times}) for axis in (0, 1))
    labels = [f"{value:,}" if down else "" for value in downs]
    left = 24 + max(svg.estimate_text_width(words) for words in (down, *labels))
    right, bottom = left + WIDTH * len(acrosses), TOP + HEIGHT * len(downs)

    def cell_at(row: int, column: int) -> Cell | None:
        if (row, column) not in times:
            return None
        time = times[row, column]
        where = ", ".join(f"{axis} {value:,}" for axis, value in ((down, row), (across, column)) if axis)
        strength = (time - low) / (high - low) if high > low else 0
        return Cell(strength, svg.format_number(time), f"{where}: {svg.format_number(time)} ms")

    grid = [[cell_at(row, column) for column in acrosses] for row in downs]
    parts = [svg.text(title, 8, 20, "head"), svg.text("ms; the stronger its colour, the slower", 8, 40, "quiet")]
    parts += draw_cells(grid, left, TOP, WIDTH, HEIGHT)
    frame = left + acrosses.index(best[1]) * WIDTH, TOP + downs.index(best[0]) * HEIGHT
    parts.append(svg.path(f"M{frame[0]:g} {frame[1]}h{WIDTH}v{HEIGHT}h{-WIDTH}z", "mark"))
    for row, words in enumerate(labels):
        parts.append(svg.text(words, left - 8, TOP + (row + 0.5) * HEIGHT + 4, anchor="end"))
    for column, value in enumerate(acrosses):
        parts.append(svg.text(f"{value:,}", left + (column + 0.5) * WIDTH, bottom + 16, anchor="middle"))
    parts.append(svg.text(down, left - 8, TOP - 8, "quiet", "end"))
    parts.append(svg.text(across, right, bottom + 34, "quiet", "end"))
    told = "; ".join(one.tooltip for line in grid for one in line if one)
    width = max(right, 8 + svg.estimate_text_width(title)) + 24
    return svg.picture(name, title, f"Heat map of times. The least is framed. {told}.", width, bottom + 44, parts)
