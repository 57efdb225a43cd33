"""Return SVG elements that all charts share (text, axes, legends), collect shapes in drawings, and save charts."""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path

from app.base.errors import UserError
from app.files.reading import may_exist, read_first_bytes
from app.files.writing import replace_atomically

START = '<svg class="chart" '  # of every chart
STYLE = Path(__file__).with_name("style.css")
Scale = Callable[[float], float]  # a value → its coordinate
Label = Callable[[float], str]  # a tick → its label


def style_sheet() -> str:
    """Return the style sheet for pages with charts."""
    return STYLE.read_text(encoding="utf-8")


def light_style_sheet() -> str:
    """Return the style sheet for files: light colours only, and no CSS variables, which some viewers do not support."""
    palettes, _, rules = style_sheet().partition("svg.chart {  /* every ground */\n")
    light = dict(re.findall(r"(--chart-\w+): (#\w+);", palettes.partition("@media")[0]))
    return "svg.chart {\n" + re.sub(r"var\((--chart-\w+)\)", lambda found: light[found[1]], rules)


def format_number(value: float) -> str:
    """Return a number in at least three significant digits: ``635``, ``24.7``, ``0.403``; thousands have commas."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


def estimate_text_width(text: str, size: float = 12) -> float:
    """Return an upper estimate of a text's width in pixels. size: size of the font in pixels."""
    return 0.6 * size * len(text)


def log_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return a function that maps low..high, both positive, logarithmically to start..stop."""
    span = math.log(high / low)
    return lambda value: start + (stop - start) * math.log(value / low) / span


def linear_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return a function that maps low..high linearly to start..stop."""
    return lambda value: start + (stop - start) * (value - low) / (high - low)


def powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten within low..high."""
    return [10.0**i for i in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within low..high; if there are fewer than two, also their multiples by two and five."""
    tens = powers_of_ten(low, high)
    if len(tens) > 1:
        return tens
    return [tick for ten in powers_of_ten(low / 10, high) for tick in (ten, 2 * ten, 5 * ten) if low <= tick <= high]


def linear_ticks(high: float, most: int = 6, low: float = 0) -> list[float]:
    """Return round numbers from ``low`` to ``high``, at most ``most`` + 1 of them."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return the label of a tick: ``0.01``, ``1``, ``1,000``."""
    return f"{value:,.0f}" if value >= 1 else f"{value:.10f}".rstrip("0").rstrip(".") or "0"


def text(
    words: str, x: float, y: float, kind: str = "", anchor: str = "start", *, turned: float = 0, title: str = ""
) -> str:
    """Return a text element. kind: CSS classes. anchor: its text-anchor. turned: clockwise degrees. title: tooltip."""
    where = f'transform="translate({x:g} {y:g}) rotate({turned:g})"' if turned else f'x="{x:g}" y="{y:g}"'
    ends = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f"<text {where}{ends}{_class_attribute(kind)}>{_title_element(title)}{escape(words)}</text>"


def path(commands: str, kind: str, more: str = "") -> str:
    """Return a path element. commands: its attribute ``d``. kind: its CSS classes. more: further attributes."""
    return f'<path class="{kind}"{more} d="{commands}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str, title: str = "", more: str = "") -> str:
    """Return a rectangle. kind: its CSS classes. title: its tooltip, also read aloud. more: further attributes."""
    size = f'x="{x:g}" y="{y:g}" width="{max(width, 0.5):g}" height="{height:g}"'
    return f"<rect{_class_attribute(kind)}{more} {size}>{_title_element(title)}</rect>"


def dot(x: float, y: float, kind: str, title: str = "", radius: float = 4.5) -> str:
    """Return a circle. kind: its CSS classes. title: its tooltip, also for screen readers."""
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}">{_title_element(title)}</circle>'


def _class_attribute(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _title_element(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def horizontal_axis(ticks: Iterable[float], x: Scale, top: float, bottom: float, label: Label) -> list[str]:
    """Return the SVG of a vertical grid line for each tick, from ``top`` to ``bottom``, with its label below."""
    parts = []
    for tick in ticks:
        parts.append(path(f"M{x(tick):.5g} {top:g}V{bottom:g}", "grid"))
        parts.append(text(label(tick), x(tick), bottom + 16, "quiet small", "middle"))
    return parts


def vertical_axis(ticks: Iterable[float], y: Scale, left: float, right: float, label: Label) -> list[str]:
    """Return the SVG of a horizontal grid line for each tick, from ``left`` to ``right``, with its label at left."""
    parts = []
    for tick in ticks:
        parts.append(path(f"M{left:g} {y(tick):.5g}H{right:g}", "grid"))
        parts.append(text(label(tick), left - 7, y(tick) + 4, "quiet small", "end"))
    return parts


def legend(entries: Mapping[str, str], x: float, y: float, right: float = math.inf) -> list[str]:
    """Return the SVG of a legend: samples with their meanings, in rows 22 pixels apart that end before ``right``.

    entries: meaning → SVG element drawn around (0, 0).
    """
    parts, left = [], x
    for meaning, sample in entries.items():
        if x > left and x + 20 + estimate_text_width(meaning) > right:
            x, y = left, y + 22
        parts.append(f'<g transform="translate({x + 8:g} {y - 4:g})">{sample}</g>')
        parts.append(text(meaning, x + 20, y, "quiet"))
        x += 20 + estimate_text_width(meaning) + 16
    return parts


def picture(name: str, title: str, description: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Return a chart's ``svg`` element. name: unique in a page. description: alternative text. parts: its elements."""
    told = f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-desc">{escape(description)}</desc>\n'
    head = f'{START}role="img" aria-labelledby="{name}-title {name}-desc"'
    return f"{head} {size_attributes(width, height)}>\n{told}" + "\n".join(parts) + "\n</svg>"


def size_attributes(width: float, height: float, margin: float = 0) -> str:
    """Return the attributes of an ``svg`` element for its size, with coordinates that begin at (-margin, -margin)."""
    return f'viewBox="{0 - margin:g} {0 - margin:g} {width:g} {height:g}" width="{width:g}" height="{height:g}"'


GAP, MARGIN = 12, 2
CELL = 4  # smallest side of a square, in pixels, whose grid lines are drawn
TIP = (  # defines the arrowhead; the id may occur once in a page, and only one drawing of a page has arrows
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f"{path('M0 0L8 4L0 8z', 'tip')}</marker></defs>"
)


@dataclass
class Drawing:
    """A picture that grows to contain the shapes that are added to it. width, height: its size in pixels so far.

    summary: the alternative text. keys: CSS class → what its shapes mean, for the legend. parts: SVG elements.
    """

    summary: str
    keys: dict[str, list[str]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def _grow_to_contain(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def add_grid(self, x: float, y: float, rows: int, columns: int, cell: float, kind: str = "plain") -> None:
        """Draw a grid of squares with sides of ``cell`` pixels, without lines if they are small. kind: CSS class."""
        width, height = columns * cell, rows * cell
        across = "".join(f"M{x:g} {y + row * cell:g}h{width:g}" for row in range(1, rows))
        down = "".join(f"M{x + column * cell:g} {y:g}v{height:g}" for column in range(1, columns))
        self.parts.append(bar(x, y, width, height, kind))
        if cell >= CELL:
            self.parts.append(path(f"{across}{down}", "cells"))
        self._grow_to_contain(x + width, y + height)

    def add_rectangle(self, x: float, y: float, width: float, height: float, kind: str, title: str) -> None:
        """Draw a rectangle. kind: its CSS class. title: what it shows, for its tooltip and the legend."""
        if title and title not in self.keys.setdefault(kind, []):
            self.keys[kind].append(title)
        self.parts.append(bar(x, y, width, height, kind, title))
        self._grow_to_contain(x + width, y + height)

    def add_text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write one line of text at (x, y). kind: CSS classes. anchor: ``start``, ``middle`` or ``end``."""
        self.parts.append(text(words, x, y, kind, anchor))
        self._grow_to_contain(x + estimate_text_width(words, 11) * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + 4)

    def add_text_lines(self, x: float, y: float, *lines: str, kind: str = "") -> None:
        """Write lines of text below one another."""
        for number, words in enumerate(lines):
            self.add_text(x, y + 17 * number, words, kind)

    def add_arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw an arrow from (x, y) to (to_x, to_y)."""
        self.parts.append(path(f"M{x:g} {y:g}L{to_x:g} {to_y:g}", "arrow", ' marker-end="url(#tip)"'))
        self._grow_to_contain(max(x, to_x) + 4, max(y, to_y) + 4)

    def svg(self) -> str:
        """Return the drawing as an ``svg`` element."""
        tip = TIP * any("url(#tip)" in part for part in self.parts)
        size = size_attributes(self.width + GAP, self.height + GAP, MARGIN)
        return f'<svg role="img" {size} aria-label="{escape(self.summary)}">{tip}{"".join(self.parts)}</svg>'


FILE_START = START.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')  # of every file that this writes


def check_chart_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` cannot be created or written to; create nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with _report_os_errors(folder), tempfile.TemporaryFile(dir=existing):
        pass


def create_chart_folder(folder: Path) -> None:
    """Create the folder and its parents. Raises UserError if it cannot be created or written to."""
    check_chart_folder(folder)
    with _report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _report_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--plot {folder} cannot be written: {error.strerror}; name a folder that you can write to"
        ) from error


def save_chart(chart: str, path: Path, source: str = "") -> Path:
    """Write a chart as an SVG file and return the path. source: text to store, which ``read_chart_source`` returns.

    The file includes the style sheet for light backgrounds. Raises UserError if it cannot be written, or if the path is
    a file that this program did not draw.
    """
    if may_exist(path) and read_first_bytes(path, len(FILE_START)) not in (b"", FILE_START.encode()):
        raise UserError(
            f"{path} already exists and is not a chart of this program: remove it, or name another --plot folder"
        )
    told = f"<metadata>{escape(source)}</metadata>\n" if source else ""
    head, described, drawn = chart.partition("</desc>\n")
    text = f"{head}{described}{told}<style>\n{light_style_sheet()}</style>\n{drawn}\n".replace(START, FILE_START, 1)
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def read_chart_source(path: Path) -> str | None:
    """Return the ``source`` stored in a saved chart; None if the file or the source is missing."""
    try:
        found = re.search(r"<metadata>(.*)</metadata>", path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    return found and unescape(found[1])
