"""Cells of a table, the stronger the colour the greater the value: alone, and as a heat map with its axes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from app.drawing import svg

FULL = 0.75  # opacity of the strongest cell: numbers stay readable on it
WIDTH, HEIGHT, TOP = 66, 34, 76  # of a cell of a heat map; above the first


@dataclass(frozen=True)
class Cell:
    """A cell. strength: of its colour, 0 to 1; said: what stands in it; told: what a pointer on it says."""

    strength: float
    said: str
    told: str
    kind: str = "c2 full"


def cells(grid: Sequence[Sequence[Cell | None]], left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Draw rows of cells of that size, from above; None leaves a cell empty."""
    for row, line in enumerate(grid):
        for column, cell in enumerate(line):
            if cell is None:
                continue
            x, y = left + column * width, top + row * height
            yield svg.bar(x, y, width, height, cell.kind, cell.told, f' fill-opacity="{FULL * cell.strength:.3f}"')
            if cell.said:
                yield svg.text(cell.said, x + width / 2, y + height / 2 + 4, anchor="middle")


def heat_map(
    title: str,
    down: tuple[str, Sequence[str]],
    across: tuple[str, Sequence[str]],
    ms: Sequence[Sequence[float]],
    name: str = "heat",
) -> str:
    """Draw times, ms[down][across], and frame the least; NaN: no time. down, across: an axis's name and its values."""
    times = {(row, column): time for row, line in enumerate(ms) for column, time in enumerate(line) if not isnan(time)}
    best = min(times, key=lambda where: times[where])
    low, high = times[best], max(times.values())
    left = 24 + max(svg.width_of(words) for words in (down[0], *down[1]))
    right, bottom = left + WIDTH * len(across[1]), TOP + HEIGHT * len(down[1])

    def cell(row: int, column: int) -> Cell | None:
        if (row, column) not in times:
            return None
        time = times[row, column]
        where = ", ".join(f"{axis} {values[at]}" for (axis, values), at in ((down, row), (across, column)) if axis)
        strength = (time - low) / (high - low) if high > low else 0
        return Cell(strength, svg.number(time), f"{where}: {svg.number(time)} ms")

    grid = [[cell(row, column) for column in range(len(across[1]))] for row in range(len(down[1]))]
    parts = [svg.text(title, 8, 20, "head"), svg.text("ms; the stronger its colour, the slower", 8, 40, "quiet")]
    parts += cells(grid, left, TOP, WIDTH, HEIGHT)
    parts.append(svg.path(f"M{left + best[1] * WIDTH:g} {TOP + best[0] * HEIGHT}h{WIDTH}v{HEIGHT}h{-WIDTH}z", "mark"))
    for row, words in enumerate(down[1]):
        parts.append(svg.text(words, left - 8, TOP + (row + 0.5) * HEIGHT + 4, anchor="end"))
    for column, words in enumerate(across[1]):
        parts.append(svg.text(words, left + (column + 0.5) * WIDTH, bottom + 16, anchor="middle"))
    parts.append(svg.text(down[0], left - 8, TOP - 8, "quiet", "end"))
    parts.append(svg.text(across[0], right, bottom + 34, "quiet", "end"))
    told = "; ".join(one.told for line in grid for one in line if one)
    width = max(right, 8 + svg.width_of(title)) + 24
    return svg.picture(name, title, f"Heat map of times. The least is framed. {told}.", width, bottom + 44, parts)
