"""Draw line charts with a panel for each quantity; the names at the ends of the lines replace a legend."""

from collections.abc import Iterable, Sequence

from app.base.frozen import Frozen
from app.drawing import labels, svg

WIDTH, HEIGHT, TOP, LEFT, GAP = 440, 320, 66, 64, 90
NAMES = 24  # pixels between a line's end and its name


class Line(Frozen):
    """One line: its name, its colour class, and its points from left to right."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False

    @property
    def css_classes(self) -> str:
        """Return the CSS classes of the line's path element."""
        return f"{self.colour} curve dashed" if self.dashed else f"{self.colour} curve"


class Panel(Frozen):
    """A panel of a chart: the lines of one quantity. down: label of the vertical axis."""

    down: str
    lines: Sequence[Line]


def draw_line_chart(
    title: str,
    across: str,
    panels: Sequence[Panel],
    *,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
    name: str = "lines",
) -> str:
    """Return a chart as SVG. across: label of the horizontal axis. mark: (number to mark on it, text beside it).

    logarithmic: whether both axes are logarithmic; all values must then be positive. Raises ValueError without a point.
    """
    height = max(HEIGHT, *(labels.HEIGHT * len(panel.lines) for panel in panels))
    parts, left = [svg.text(title, 8, 20, "head")], float(LEFT)
    for panel in panels:
        parts += _draw_panel(panel, left, height, logarithmic, mark)
        parts.append(svg.text(f"{across} →", left + WIDTH, TOP + height + 32, "quiet small", "end"))
        left += WIDTH + NAMES + max(svg.estimate_text_width(line.name) for line in panel.lines) + GAP
    marked = "" if mark is None else f" {mark[1]}: {mark[0]:g}."
    return svg.picture(name, title, f"{_describe_lines(across, panels)}{marked}", left - GAP, TOP + height + 44, parts)


def _draw_panel(
    panel: Panel, left: float, height: float, logarithmic: bool, mark: tuple[float, str] | None
) -> Iterable[str]:
    low, high = _axis_range((x for line in panel.lines for x, _ in line.points), logarithmic)
    least, most = _axis_range((y for line in panel.lines for _, y in line.points), logarithmic)
    scale = svg.log_scale if logarithmic else svg.linear_scale
    x, y = scale(low, high, left, left + WIDTH), scale(least, most, TOP + height, TOP)
    ticks = svg.log_ticks if logarithmic else lambda low, high: svg.linear_ticks(high, low=low)
    yield svg.text(f"{panel.down} ↑", left - 44, TOP - 12, "head")
    whole = [tick for tick in ticks(low, high) if tick == round(tick)]
    yield from svg.horizontal_axis(whole, x, TOP, TOP + height, svg.tick_text)
    yield from svg.vertical_axis(ticks(least, most), y, left, left + WIDTH, svg.tick_text)
    yield svg.path(f"M{left:g} {TOP}v{height:g}h{WIDTH}", "axis")
    if mark is not None:
        yield svg.path(f"M{x(mark[0]):.5g} {TOP}v{height:g}", "mark dashed")
        yield svg.text(mark[1], x(mark[0]), TOP - 4, "quiet small", "middle")
    lines = sorted(panel.lines, key=lambda line: y(line.points[-1][1]))
    ends = [y(line.points[-1][1]) for line in lines]
    for line, end, place in zip(lines, ends, labels.spread_label_positions(ends, TOP, TOP + height), strict=True):
        yield svg.path("M" + "L".join(f"{x(a):.5g} {y(b):.5g}" for a, b in line.points), line.css_classes)
        for a, b in line.points:
            yield svg.dot(x(a), y(b), f"{line.colour} full", f"{line.name}, {a:,g}: {svg.format_number(b)}", radius=2.5)
        yield svg.path(f"M{x(line.points[-1][0]) + 4:.5g} {end:.5g}L{left + WIDTH + NAMES - 4:g} {place:.5g}", "leader")
        yield svg.text(line.name, left + WIDTH + NAMES, place + 4)


def _axis_range(values: Iterable[float], logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis, with a small margin around the values."""
    found = [*values]
    low, high = min(found), max(found)
    if logarithmic:
        return low / 1.1, high * 1.1
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin


def _describe_lines(across: str, panels: Sequence[Panel]) -> str:
    """Return a description in words of where every line begins and ends."""
    told = [
        f"{line.name}, {panel.down}: from {svg.format_number(line.points[0][1])} at {line.points[0][0]:,g} "
        f"to {svg.format_number(line.points[-1][1])} at {line.points[-1][0]:,g}"
        for panel in panels
        for line in panel.lines
    ]
    return f"Lines over {across}. {'; '.join(told)}."
