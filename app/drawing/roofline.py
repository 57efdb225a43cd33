"""Draw rooflines: TFLOP/s over FLOPs per byte of device memory, with a panel for each number format."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, SHORT
from app.drawing import svg
from app.drawing.labels import Box, NoRoomError, place_labels

WIDTH, HEIGHT, COLUMNS = 440, 330, 2  # of a panel; panels side by side
CROWDED, TALL = 8, 430  # the most points of a panel that shares its row; the height of a panel with more
LEFT, TOP, GAP, HEAD = 52, 34, 64, 70
STRETCHES = (1, 1.5, 2, 4)  # panels grow by these factors until their labels have room
LINE, FAR = 4, 100  # size of the boxes that keep labels off a line; only lines between steps longer than FAR get them
Key = tuple[str, str]  # a row's name and number format (dtype)


class Point(Frozen):
    """A kernel in the roofline. step: its number; None for other systems, 0 for cuBLAS.

    intensity: FLOPs per byte. tflops: achieved rate of the layer's operations. measured: whether the hardware counted
    the bytes; otherwise each array counts as moved once.
    """

    name: str
    dtype: str
    step: int | None
    intensity: float
    tflops: float
    measured: bool

    @property
    def label(self) -> str:
        """Return the name of the point: ``13 register-patch``."""
        return self.name if self.step is None else f"{self.step} {self.name}"


def roofline_points(
    document: Mapping[str, Any], item: str, dram_bytes: Mapping[Key, float] | None = None
) -> list[Point]:
    """Return a point for each GPU kernel that a bench document times on the convolution ``item``, in its order.

    dram_bytes: (name, number format) → bytes that the hardware counted between device memory and GPU, for the batch.
    For other kernels, each array counts as moved once.
    """
    dram_bytes = dram_bytes or {}
    (table,) = (table for table in document["tables"] if table["item"] == item)
    found = []
    for row in table["rows"]:
        if row["ms"] is None or row["kind"] in ("cpu", "debug"):
            continue
        rates, nbytes = row["rates"], dram_bytes.get((row["name"], row["dtype"]))
        intensity = rates["intensity"] if nbytes is None else rates["tflops"] * row["ms"] * 1e9 / nbytes
        found.append(Point(row["name"], row["dtype"], row["step"], intensity, rates["tflops"], nbytes is not None))
    return found


def draw_roofline(points: Sequence[Point], peaks: Mapping[str, Any], title: str, name: str = "roofline") -> str:
    """Return a roofline as SVG. peaks: rates in a bench document. Raises ValueError without points, or NoRoomError."""
    if not points:
        raise ValueError("a roofline needs a point")
    for stretch in STRETCHES:
        with suppress(NoRoomError):
            return _draw_panels(points, peaks, title, name, stretch)
    raise NoRoomError("the labels are too many or too long")


def _draw_panels(points: Sequence[Point], peaks: Mapping[str, Any], title: str, name: str, stretch: float) -> str:
    """Return the chart with panels ``stretch`` times as high. Raises NoRoomError if labels do not fit."""
    formats = [dtype for dtype in BY_DTYPE if any(point.dtype == dtype for point in points)]
    bandwidth = peaks["gbytes_per_s"] / 1e3
    parts = [svg.text(title, 8, 20, "head"), *_draw_legend(points)]
    panels = _panel_boxes([sum(point.dtype == dtype for point in points) for dtype in formats], stretch)
    for panel, dtype in zip(panels, formats, strict=True):
        own = [point for point in points if point.dtype == dtype]
        roofs = {family: tflops for family, tflops in peaks["tflops"].items() if family.split()[0] == dtype}
        xs, ys = _axis_ranges(own, roofs, bandwidth)
        x = svg.log_scale(*xs, panel.x, panel.x + panel.width)
        y = svg.log_scale(*ys, panel.y + panel.height, panel.y)
        parts.append(svg.text(f"{SHORT[dtype]}, TFLOP/s ↑", panel.x - 44, panel.y - 12, "head"))
        parts += _draw_axes(x, y, xs, ys, panel)
        lines, occupied = _draw_roofs(roofs, bandwidth, x, y, xs, BY_DTYPE[dtype].colour)
        parts += lines + _draw_points(own, x, y, panel, occupied)
    width = max(panel.x + panel.width for panel in panels) + GAP
    height = max(panel.y + panel.height for panel in panels) + GAP
    return svg.picture(name, title, _describe_points(points, peaks), max(width, 760), height, parts)


def _panel_boxes(counts: Sequence[int], stretch: float) -> list[Box]:
    """Return a box for each panel. counts: points of each; panels with many are alone in a row. stretch: of heights."""
    found: list[Box] = []
    column, top = 0, float(HEAD + TOP)
    for count in counts:
        wide = count > CROWDED
        if column and (wide or column == COLUMNS):
            column, top = 0, top + found[-1].height + GAP + TOP
        width, height = (COLUMNS * (WIDTH + GAP) - GAP, TALL) if wide else (WIDTH, HEIGHT)
        found.append(Box(LEFT + column * (WIDTH + GAP), top, width, height * stretch))
        column += COLUMNS if wide else 1
    return found


def _axis_ranges(
    points: Sequence[Point], roofs: Mapping[str, float], bandwidth: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of both axes, which include points, roofs (TFLOP/s) and ridge points. bandwidth: in TB/s."""
    xs, ys = [point.intensity for point in points], [point.tflops for point in points]
    ridges = [tflops / bandwidth for tflops in roofs.values()]
    across = (
        min([min(xs) / 3, *(ridge / 2 for ridge in ridges)]),
        max([3 * max(xs), *(2.5 * ridge for ridge in ridges)]),
    )
    return across, (min(ys) / 3, 2 * max([*ys, *roofs.values()]))


def _draw_axes(x: svg.Scale, y: svg.Scale, xs: tuple[float, float], ys: tuple[float, float], panel: Box) -> list[str]:
    right, bottom = panel.x + panel.width, panel.y + panel.height
    parts = svg.horizontal_axis(svg.log_ticks(*xs), x, panel.y, bottom, svg.tick_text)
    parts += svg.vertical_axis(svg.log_ticks(*ys), y, panel.x, right, svg.tick_text)
    parts.append(svg.text("FLOPs per byte of device memory →", right, bottom + 31, "quiet small", "end"))
    parts.append(svg.path(f"M{panel.x:g} {panel.y:g}v{panel.height:g}h{panel.width:g}", "axis"))
    return parts


def _draw_roofs(
    roofs: Mapping[str, float], bandwidth: float, x: svg.Scale, y: svg.Scale, xs: tuple[float, float], colour: str
) -> tuple[list[str], list[Box]]:
    """Return the SVG of the roofs (TFLOP/s) and boxes for labels to avoid. bandwidth: in TB/s. xs: ends of x axis."""
    low, high = xs
    parts: list[str] = []
    boxes: list[Box] = []
    drawn: list[Box] = []
    for family, tflops in sorted(roofs.items(), key=lambda roof: -roof[1]):
        ridge = tflops / bandwidth
        dashed = " dashed" if " " in family else ""
        line = f"M{x(low):.5g} {y(low * bandwidth):.5g}L{x(ridge):.5g} {y(tflops):.5g}H{x(high):.5g}"
        parts.append(svg.path(line, f"{colour} curve{dashed}"))
        drawn += _line_boxes((x(low), y(low * bandwidth)), (x(ridge), y(tflops)))
        drawn += _line_boxes((x(ridge), y(tflops)), (x(high), y(tflops)))
        said = f"{family.partition(' ')[2]} {svg.format_number(tflops)} TFLOP/s".strip()
        width = svg.estimate_text_width(said, 10.5)
        box = Box(x(high) - width, y(tflops) - 16, width, 14)
        if any(box.overlaps_box(other) for other in boxes):
            box = Box(box.x, y(tflops) + 2, width, 14)
        boxes.append(box)
        parts.append(svg.text(said, x(high), box.y + 11, "quiet small", "end"))
    return parts, boxes + drawn


def _line_boxes(start: tuple[float, float], stop: tuple[float, float]) -> list[Box]:
    """Return small boxes that cover a line, so that labels can avoid it."""
    steps = max(math.ceil(math.dist(start, stop) / LINE), 1)
    across, down = ((b - a) / steps for a, b in zip(start, stop, strict=True))
    places = [(start[0] + across * at, start[1] + down * at) for at in range(steps + 1)]
    return [Box(px - LINE / 2, py - LINE / 2, LINE, LINE) for px, py in places]


def _draw_points(points: Sequence[Point], x: svg.Scale, y: svg.Scale, panel: Box, occupied: Sequence[Box]) -> list[str]:
    at = [(x(point.intensity), y(point.tflops)) for point in points]
    order = sorted(range(len(at)), key=lambda place: at[place][1])  # from above, so that few leaders cross
    wide = [(at[place], svg.estimate_text_width(points[place].label, 11)) for place in order]
    steps = [where for where, point in zip(at, points, strict=True) if point.step]
    drawn = [box for line in pairwise(steps) if math.dist(*line) > FAR for box in _line_boxes(*line)]
    boxes = dict(zip(order, place_labels(wide, panel, [*occupied, *drawn]), strict=True))
    parts = [svg.path("M" + "L".join(f"{px:.5g} {py:.5g}" for px, py in steps), "c0 thin")] if len(steps) > 1 else []
    for place, ((px, py), point) in enumerate(zip(at, points, strict=True)):
        box = boxes[place]
        colour = "c0" if not point.step else BY_DTYPE[point.dtype].colour
        near = min(max(px, box.x), box.x + box.width), min(max(py, box.y), box.y + box.height)
        if abs(near[0] - px) + abs(near[1] - py) > 12:
            parts.append(svg.path(f"M{px:.5g} {py:.5g}L{near[0]:.5g} {near[1]:.5g}", "leader"))
        parts.append(_draw_marker(point, px, py, colour))
        left = box.x + box.width / 2 < px  # of its point: then the text ends there
        edge, anchor = (box.x + box.width - 1, "end") if left else (box.x + 1, "start")
        parts.append(svg.text(point.label, edge, box.y + box.height - 3, "small", anchor))
    return parts


def _draw_marker(point: Point, x: float, y: float, colour: str) -> str:
    kind = f"{colour} {'full' if point.measured else 'open'}"
    return (
        svg.dot(x, y, kind, _point_tooltip(point))
        if point.step
        else svg.bar(x - 4, y - 4, 8, 8, kind, _point_tooltip(point))
    )


def _draw_legend(points: Sequence[Point]) -> list[str]:
    entries = {}
    if any(point.measured for point in points):
        entries["bytes counted by the hardware"] = svg.dot(0, 0, "c1 full")
    if not all(point.measured for point in points):
        entries["bytes of moving each array once"] = svg.dot(0, 0, "c1 open")
    if not all(point.step for point in points):
        entries["other systems"] = svg.bar(-4, -4, 8, 8, "c0 open")
    entries["in the order of the steps"] = svg.path("M-8 0h16", "c0 thin")
    return svg.legend(entries, 8, 46)


def _point_tooltip(point: Point) -> str:
    how = "measured" if point.measured else "counted once"
    return (
        f"{point.label}, {SHORT[point.dtype]}: {svg.format_number(point.tflops)} TFLOP/s at "
        f"{svg.format_number(point.intensity)} FLOPs per byte ({how})"
    )


def _describe_points(points: Sequence[Point], peaks: Mapping[str, Any]) -> str:
    roofs = ", ".join(
        f"{SHORT[family.split()[0]]}{family.partition(' ')[1]}{family.partition(' ')[2]} {svg.format_number(tflops)} "
        "TFLOP/s"
        for family, tflops in peaks["tflops"].items()
    )
    return (
        f"Points below the measured limits of the card: {roofs}; device memory "
        f"{svg.format_number(peaks['gbytes_per_s'])} GB/s. {'; '.join(map(_point_tooltip, points))}."
    )
