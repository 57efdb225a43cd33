"""Draw a bar chart of the ladder of kernels: the measured and predicted time of each, on a logarithmic scale."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, SHORT
from app.drawing import svg

HEIGHT = 24  # of a bar's row, in pixels
SAME = 0.03  # relative differences below this count as none
Key = tuple[str, str]  # a step's name and number format (dtype)


class Layout(Frozen):
    """Sizes in pixels. left, top, right: space around bars. width: of the bars. ratios: whether ratios are shown."""

    left: int
    top: int
    width: int
    right: int
    ratios: bool


WIDE, NARROW = Layout(160, 66, 560, 150, ratios=True), Layout(144, 110, 130, 66, ratios=False)


class Bar(Frozen):
    """The bar of a kernel (a step of the ladder) or of another system.

    ms: measured time. step: the step's number; None for other systems, 0 for cuBLAS; the bars of both are grey.
    predicted_ms: time predicted before the measurement, or None. ratio: time of the step that this one continues ÷ time
    of this step; None if that step has no bar. link: address of the step's page, or empty.
    """

    name: str
    dtype: str
    ms: float
    step: int | None = None
    predicted_ms: float | None = None
    ratio: float | None = None
    link: str = ""

    @property
    def label(self) -> str:
        """Return the label beside the bar: ``13 register-patch``, with the number format unless it is fp32."""
        return step_label(self.name, self.dtype, self.step)

    @property
    def is_slower(self) -> bool:
        """Return whether the step is slower than the one that it continues, by more than ``SAME``."""
        return self.ratio is not None and self.ratio < 1 - SAME


def step_label(name: str, dtype: str, step: int | None) -> str:
    """Return a kernel's label: its step if it has one, its name, and its number format unless this is fp32."""
    number = "" if step is None else f"{step} "
    return f"{number}{name}" + ("" if dtype == "float32" else f", {SHORT[dtype]}")


def measured_predecessor(
    since: Mapping[str, str | None], name: str, dtype: str, is_measured: Callable[[str, str], bool]
) -> Key | None:
    """Return the nearest measured predecessor of step ``name``, as (name, format): in ``dtype``, or else in float32.

    since: step → step that it continues. is_measured: takes (name, format). Returns None if it is False for all.
    """
    while (before := since.get(name)) is not None:
        for key in ((before, dtype), (before, "float32")):
            if is_measured(*key):
                return key
        name = before
    return None


def bars_from_bench(
    document: Mapping[str, Any],
    item: str | None = None,
    predicted: Mapping[Key, float] | None = None,
    links: Mapping[Key, str] | None = None,
    since: Mapping[str, str | None] | None = None,
) -> list[Bar]:
    """Return the bars of a bench document, in its order: for the convolution ``item``, or (None) for the sum of all.

    predicted: (name, number format) → ms. links: (name, number format) → address. since: step → step that it continues.
    The kernel that is compiled without optimisation gets no bar.
    """
    predicted, links, since = predicted or {}, links or {}, since or {}
    rows = [row for row in document["totals"] if row["kind"] != "debug"]
    times = {(row["name"], row["dtype"]): row["sum_ms"] if item is None else row["ops"].get(item) for row in rows}

    def ratio_to_predecessor(name: str, dtype: str, ms: float) -> float | None:
        before = measured_predecessor(since, name, dtype, lambda *key: bool(times.get(key)))
        return times[before] / ms if before else None

    return [
        Bar(*key, ms, row["step"], predicted.get(key), ratio_to_predecessor(*key, ms), links.get(key, ""))
        for row in rows
        if (ms := times[key := (row["name"], row["dtype"])])
    ]


def draw_ladder_chart(bars: Sequence[Bar], title: str, name: str = "journey", layout: Layout = WIDE) -> str:
    """Return a bar chart as SVG: the measured time of each step on a log scale, with a mark at its predicted time.

    layout: ``WIDE``, or ``NARROW`` for a phone, where the title must be short. Raises ValueError without bars.
    """
    times = [ms for bar in bars for ms in (bar.ms, bar.predicted_ms) if ms is not None]
    if not times:
        raise ValueError("a journey needs a step")
    low, high = 10 ** (math.floor(math.log10(min(times)))), max(times) * 1.05
    end = layout.left + layout.width
    scale = svg.log_scale(low, high, layout.left, end)
    bottom = layout.top + HEIGHT * len(bars)
    parts = [svg.text(title, 8, 20, "head"), *_draw_legend(bars, end + layout.right)]
    unit = " ms" if layout.ratios else ""
    powers_of_ten = svg.powers_of_ten(low, high)
    parts += svg.horizontal_axis(powers_of_ten, scale, layout.top - 4, bottom, lambda tick: svg.tick_text(tick) + unit)
    for place, bar in enumerate(bars):
        row = "".join(_draw_bar_row(bar, layout.top + place * HEIGHT, scale, layout))
        parts.append(f'<a href="{escape(bar.link)}">{row}</a>' if bar.link else row)
    return svg.picture(name, title, _describe_bars(bars), end + layout.right, bottom + 28, parts)


def _draw_bar_row(bar: Bar, top: float, scale: svg.Scale, layout: Layout) -> Iterable[str]:
    colour, end, middle = BY_DTYPE[bar.dtype].colour if bar.step else "c0", scale(bar.ms), top + HEIGHT / 2
    inner, left = HEIGHT - 8, layout.left
    yield svg.text(bar.label, left - 8, middle + 4, anchor="end")
    yield svg.bar(
        left, top + 4, end - left, inner, f"{colour} {'open' if bar.is_slower else 'full'}", _bar_tooltip(bar)
    )
    if bar.is_slower:  # stripes, so that losers also stand out without colour
        at = range(left + 6, int(end) - 2, 10)
        yield svg.path(
            "".join(f"M{x} {top + 4 + inner:g}l{min(inner, end - x):.4g} {-inner:g}" for x in at), f"{colour} thin"
        )
    after = end
    if bar.predicted_ms is not None:
        x = scale(bar.predicted_ms)
        yield svg.path(
            f"M{x:.5g} {top + 3:g}v{HEIGHT - 6}M{x - 4:.5g} {top + 3:g}h8M{x - 4:.5g} {top + HEIGHT - 3:g}h8", "mark"
        )
        after = max(end, x + 4)
    ratio = ""
    if layout.ratios and bar.ratio is not None:
        ratio = f"  ×{svg.format_number(bar.ratio)}{' slower' if bar.is_slower else ''}"
    yield svg.text(f"{svg.format_number(bar.ms)} ms{ratio}", after + 6, middle + 4)


def _bar_tooltip(bar: Bar) -> str:
    before = "" if bar.predicted_ms is None else f", predicted {svg.format_number(bar.predicted_ms)} ms"
    return f"{bar.label}: {svg.format_number(bar.ms)} ms{before}"


def _draw_legend(bars: Sequence[Bar], right: float) -> list[str]:
    formats = dict.fromkeys(bar.dtype for bar in bars if bar.step)
    entries = {SHORT[dtype]: svg.bar(-8, -6, 16, 12, f"{BY_DTYPE[dtype].colour} full") for dtype in formats}
    if not all(bar.step for bar in bars):
        entries["other systems"] = svg.bar(-8, -6, 16, 12, "c0 full")
    if any(bar.is_slower for bar in bars):
        sample = svg.bar(-8, -6, 16, 12, "c1 open") + svg.path("M-6 6l12 -12", "c1 thin")
        entries["slower than the step that it continues"] = sample
    if any(bar.predicted_ms is not None for bar in bars):
        entries["predicted"] = svg.path("M0 -7v14M-4 -7h8M-4 7h8", "mark")
    return svg.legend(entries, 8, 46, right)


def _describe_bars(bars: Sequence[Bar]) -> str:
    """Return a description of every bar in words, which is the chart's alternative text."""
    slower = [bar.label for bar in bars if bar.is_slower]
    lost = f" Slower than the steps that they continue: {', '.join(slower)}." if slower else ""
    return f"Bars on a logarithmic scale, shorter is faster. {'; '.join(map(_bar_tooltip, bars))}.{lost}"
