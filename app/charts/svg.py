"""The parts that all charts share: text, axes, a legend, and the picture around them with its alternative text.

A chart is the text of one ``svg`` element, for a page. Colours are classes of style.css: c0 to c7, of which c0 is grey;
``full`` fills a shape, ``open`` outlines it. No chart says anything by colour alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

from app.precision import BY_DTYPE

STYLE = Path(__file__).with_name("style.css")
# Number format → class of its colour, and its points' shape.
COLOURS = dict(zip(BY_DTYPE, ("c0", "c1", "c4", "c2", "c3", "c7"), strict=True))
Scale = Callable[[float], float]  # a value → its coordinate


def style() -> str:
    """Return the style sheet that a page with charts needs."""
    return STYLE.read_text(encoding="utf-8")


def number(value: float) -> str:
    """Return three significant digits: ``635``, ``24.7``, ``0.403``; thousands have commas."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


def width_of(text: str, size: float = 12) -> float:
    """Return about the width in pixels of a text in the charts' font, from above."""
    return 0.6 * size * len(text)


def log_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return the scale from low..high, both positive, to start..stop by logarithms."""
    span = math.log(high / low)
    return lambda value: start + (stop - start) * math.log(value / low) / span


def linear_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return the scale from low..high to start..stop."""
    return lambda value: start + (stop - start) * (value - low) / (high - low)


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten within low..high."""
    return [10.0**i for i in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within low..high; where there are fewer than two, also twice and five times as much."""
    tens = decades(low, high)
    if len(tens) > 1:
        return tens
    return [tick for ten in decades(low / 10, high) for tick in (ten, 2 * ten, 5 * ten) if low <= tick <= high]


def ticks(high: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 to ``high``, at most ``most`` + 1 of them."""
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if high / (power * factor) <= most)
    return [step * i for i in range(math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return a tick's label: ``0.01``, ``1``, ``1,000``."""
    return f"{value:,.0f}" if value >= 1 else f"{value:.10f}".rstrip("0").rstrip(".") or "0"


def text(said: str, x: float, y: float, kind: str = "", anchor: str = "start", more: str = "") -> str:
    """Return a text element. kind: its classes; more: further attributes."""
    classes = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.4g}" y="{y:.4g}"{where}{classes}{more}>{escape(said)}</text>'


def path(commands: str, kind: str) -> str:
    """Return a path element of these classes."""
    return f'<path class="{kind}" d="{commands}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """Return a rectangle. title: what a pointer on it and a screen reader say."""
    told = f"<title>{escape(title)}</title>" if title else ""
    size = f'width="{max(width, 0.5):.5g}" height="{height:.4g}"'
    return f'<rect class="{kind}" x="{x:.5g}" y="{y:.5g}" {size}>{told}</rect>'


def legend(entries: Mapping[str, str], x: float, y: float) -> list[str]:
    """Return a line of samples with their meaning. entries: meaning → an SVG element drawn around (0, 0)."""
    parts = []
    for meaning, sample in entries.items():
        parts.append(f'<g transform="translate({x + 8:.5g} {y - 4:.4g})">{sample}</g>')
        parts.append(text(meaning, x + 20, y, "quiet"))
        x += 20 + width_of(meaning) + 16
    return parts


def picture(name: str, title: str, description: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Return the chart. name: unlike that of any other chart of the page; description: what it shows, in words."""
    return (
        f'<svg class="chart" role="img" aria-labelledby="{name}-title {name}-desc" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-desc">{escape(description)}</desc>\n'
        + "\n".join(parts)
        + "\n</svg>"
    )
