"""The roofline: TFLOP/s over FLOPs per byte of device memory, a panel for each number format, labels at all points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts import svg
from app.charts.labels import Box, placed
from app.precision import BY_DTYPE, SHORT

WIDTH, HEIGHT, COLUMNS = 440, 330, 2  # of a panel, and of the panels
LEFT, TOP, GAP, HEAD = 52, 34, 64, 70
Key = tuple[str, str]  # a row's name and number format


@dataclass(frozen=True)
class Point:
    """One kernel. intensity: FLOPs per byte; tflops: of what it was given to compute; measured: its bytes were counted
    by the hardware, not by moving each array once. step: None for other systems, 0 for cuBLAS.
    """

    name: str
    dtype: str
    step: int | None
    intensity: float
    tflops: float
    measured: bool

    @property
    def label(self) -> str:
        """``13 register-patch``."""
        return self.name if self.step is None else f"{self.step} {self.name}"


def points(document: Mapping[str, Any], item: str, dram_bytes: Mapping[Key, float] | None = None) -> list[Point]:
    """Return the points of one convolution of a bench document, in its order.

    dram_bytes: bytes that device memory moved in the document's batch, as the hardware counted them, by name and number
    format; other rows get the bytes of moving each array once.
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


def roofline(points: Sequence[Point], peaks: Mapping[str, Any], title: str, name: str = "roofline") -> str:
    """Draw the points below the measured peaks of a bench document. Raises ValueError without any."""
    if not points:
        raise ValueError("a roofline needs a point")
    formats = [dtype for dtype in BY_DTYPE if any(point.dtype == dtype for point in points)]
    bandwidth = peaks["gbytes_per_s"] / 1e3
    ridges = [tflops / bandwidth for tflops in peaks["tflops"].values()]
    xs = [point.intensity for point in points]
    low, high = min(min(xs) / 3, min(ridges) / 2), max(2.5 * max(ridges), 3 * max(xs))
    floor, ceiling = min(point.tflops for point in points) / 3, 2 * max(peaks["tflops"].values())
    parts = [svg.text(title, 8, 20, "head"), *_legend(points)]
    for place, dtype in enumerate(formats):
        left = LEFT + place % COLUMNS * (WIDTH + GAP)
        top = HEAD + TOP + place // COLUMNS * (HEIGHT + GAP + TOP)
        x, y = svg.log_scale(low, high, left, left + WIDTH), svg.log_scale(floor, ceiling, top + HEIGHT, top)
        own = [point for point in points if point.dtype == dtype]
        roofs = {family: tflops for family, tflops in peaks["tflops"].items() if family.split()[0] == dtype}
        parts.append(svg.text(f"{SHORT[dtype]}, TFLOP/s ↑", left - 44, top - 12, "head"))
        parts += _axes(x, y, (low, high), (floor, ceiling), Box(left, top, WIDTH, HEIGHT))
        parts += _roofs(roofs, bandwidth, x, y, low, high, svg.COLOURS[dtype])
        parts += _points(own, x, y, Box(left, top, WIDTH, HEIGHT))
    columns, rows = min(len(formats), COLUMNS), -(-len(formats) // COLUMNS)
    width, height = LEFT + columns * (WIDTH + GAP), HEAD + rows * (TOP + HEIGHT + GAP)
    return svg.picture(name, title, _described(points, peaks), max(width, 760), height, parts)


def _axes(x: svg.Scale, y: svg.Scale, xs: tuple[float, float], ys: tuple[float, float], panel: Box) -> list[str]:
    parts = []
    for tick in svg.decades(*xs):
        parts.append(svg.path(f"M{x(tick):.5g} {panel.y:g}v{panel.height:g}", "grid"))
        parts.append(svg.text(svg.tick_text(tick), x(tick), panel.y + panel.height + 15, "quiet small", "middle"))
    for tick in svg.decades(*ys):
        parts.append(svg.path(f"M{panel.x:g} {y(tick):.5g}h{panel.width:g}", "grid"))
        parts.append(svg.text(svg.tick_text(tick), panel.x - 6, y(tick) + 4, "quiet small", "end"))
    below = panel.y + panel.height + 31
    parts.append(svg.text("FLOPs per byte of device memory →", panel.x + panel.width, below, "quiet small", "end"))
    parts.append(svg.path(f"M{panel.x:g} {panel.y:g}v{panel.height:g}h{panel.width:g}", "axis"))
    return parts


def _roofs(
    roofs: Mapping[str, float], bandwidth: float, x: svg.Scale, y: svg.Scale, low: float, high: float, colour: str
) -> list[str]:
    parts = []
    for family, tflops in roofs.items():
        ridge = tflops / bandwidth
        dashed = " dashed" if " " in family else ""
        line = f"M{x(low):.5g} {y(low * bandwidth):.5g}L{x(ridge):.5g} {y(tflops):.5g}H{x(high):.5g}"
        parts.append(svg.path(line, f"{colour} curve{dashed}"))
        said = f"{family.partition(' ')[2]} {svg.number(tflops)} TFLOP/s".strip()
        parts.append(svg.text(said, x(high), y(tflops) - 5, "quiet small", "end"))
    return parts


def _points(points: Sequence[Point], x: svg.Scale, y: svg.Scale, panel: Box) -> list[str]:
    at = [(x(point.intensity), y(point.tflops)) for point in points]
    boxes = placed([(where, svg.width_of(point.label, 10.5)) for where, point in zip(at, points, strict=True)], panel)
    steps = [where for where, point in zip(at, points, strict=True) if point.step]
    parts = [svg.path("M" + "L".join(f"{px:.5g} {py:.5g}" for px, py in steps), "c0 thin")] if len(steps) > 1 else []
    for (px, py), point, box in zip(at, points, boxes, strict=True):
        colour = "c0" if not point.step else svg.COLOURS[point.dtype]
        near = min(max(px, box.x), box.x + box.width), min(max(py, box.y), box.y + box.height)
        if abs(near[0] - px) + abs(near[1] - py) > 12:
            parts.append(svg.path(f"M{px:.5g} {py:.5g}L{near[0]:.5g} {near[1]:.5g}", "leader"))
        parts.append(_marker(point, px, py, colour))
        parts.append(svg.text(point.label, box.x + 1, box.y + box.height - 3, "small"))
    return parts


def _marker(point: Point, x: float, y: float, colour: str) -> str:
    kind = f"{colour} {'full' if point.measured else 'open'}"
    title = f"<title>{_told(point)}</title>"
    if not point.step:
        return f'<rect class="{kind}" x="{x - 4:.5g}" y="{y - 4:.5g}" width="8" height="8">{title}</rect>'
    return f'<circle class="{kind}" cx="{x:.5g}" cy="{y:.5g}" r="4.5">{title}</circle>'


def _legend(points: Sequence[Point]) -> list[str]:
    entries = {}
    if any(point.measured for point in points):
        entries["bytes counted by the hardware"] = '<circle class="c1 full" r="4.5"/>'
    if not all(point.measured for point in points):
        entries["bytes of moving each array once"] = '<circle class="c1 open" r="4.5"/>'
    if not all(point.step for point in points):
        entries["other systems"] = '<rect class="c0 open" x="-4" y="-4" width="8" height="8"/>'
    entries["in the order of the steps"] = svg.path("M-8 0h16", "c0 thin")
    return svg.legend(entries, 8, 46)


def _told(point: Point) -> str:
    how = "measured" if point.measured else "counted once"
    return (
        f"{point.label}, {SHORT[point.dtype]}: {svg.number(point.tflops)} TFLOP/s at {svg.number(point.intensity)} "
        f"FLOPs per byte ({how})"
    )


def _described(points: Sequence[Point], peaks: Mapping[str, Any]) -> str:
    roofs = ", ".join(
        f"{SHORT[family.split()[0]]}{family.partition(' ')[1]}{family.partition(' ')[2]} {svg.number(tflops)} TFLOP/s"
        for family, tflops in peaks["tflops"].items()
    )
    return (
        f"Points below the measured limits of the card: {roofs}; device memory "
        f"{svg.number(peaks['gbytes_per_s'])} GB/s. {'; '.join(map(_told, points))}."
    )
