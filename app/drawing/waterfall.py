"""Draw how the time of the fast path adds up, from tensor-core cycles to labels in host memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.base.frozen import Frozen
from app.drawing import svg

HEIGHT, LEFT, WIDTH, RIGHT, TOP = 40, 240, 560, 150, 66
# Clocks of the tensor cores for an image of lenet5: m64nNk16 takes N/2. conv1 takes 12 of N = 72, conv2 50 of N = 64.
CONV1, CONV2 = 12 * 36, 50 * 32
# Kernel → number of multiplications for conv1 and conv2; bytes take half the time of float16.
PRODUCTS = {
    "wgmma": (1, 1),
    "wgmma-split": (2, 3),
    "wgmma-exact": (1, 2),
    "wgmma-int8": (1, 0.5),
    "wgmma-sparse": (1, 0.5),
    "wgmma-sparse-exact": (1, 1),
    "wgmma-sparse-int8": (1, 13 / 50),
}
BOOST_MHZ = 1980  # an H100's clock under this load, used if the report has none


class Stage(Frozen):
    """A stage of the fast path. ms: time of this and all earlier stages. what: the work that this stage adds."""

    name: str
    ms: float
    what: str


def stages_from_report(report: Mapping[str, Any]) -> list[Stage]:
    """Return the stages of the time in a report of ``main.py``. Raises ValueError unless it is on lenet5 on Hopper."""
    convolutions = report["layers"][0]
    if convolutions["kernel"] not in PRODUCTS or report["batch"] != convolutions["images"]:
        raise ValueError("a budget needs a report of lenet5's fast path")
    often = PRODUCTS[convolutions["kernel"]]
    clocks = often[0] * CONV1 + often[1] * CONV2
    mhz = ((report.get("power") or {}).get("sm_clock_mhz") or {}).get("median") or BOOST_MHZ
    each = report["batch"] / report["device"]["multiprocessors"]
    return [
        Stage("tensor cores alone", each * clocks / mhz / 1e3, f"{clocks:,.0f} clocks an image at {mhz:,.0f} MHz"),
        Stage("both convolutions", convolutions["ms"], "pooling, and waiting for operands"),
        Stage("whole pass on the card", report["on_card_ms"]["p50"], "both products, the second launch"),
        Stage("end to end", report["end_to_end_ms"]["p50"], "images over the bus, launch and wait"),
    ]


def draw_waterfall(stages: Sequence[Stage], title: str, copy_ms: float, name: str = "budget") -> str:
    """Return an SVG: bars of the time that each stage adds, a line at a bus copy's time. name: id, unique in a page."""
    high = 1.02 * max(*(stage.ms for stage in stages), copy_ms)
    scale = svg.linear_scale(0, high, LEFT, LEFT + WIDTH)
    bottom = TOP + HEIGHT * len(stages)
    parts = [svg.text(title, 8, 20, "head")]
    parts += svg.horizontal_axis(
        svg.linear_ticks(high), scale, TOP - 4, bottom, lambda tick: f"{svg.tick_text(tick)} ms"
    )
    before, rates = 0.0, []
    for place, stage in enumerate(stages):
        top, start, end = TOP + place * HEIGHT, scale(min(before, stage.ms)), scale(max(before, stage.ms))
        said = (
            svg.format_number(stage.ms)
            if place == 0
            else f"+{svg.format_number(stage.ms - before)} → {svg.format_number(stage.ms)}"
        )
        parts += [
            svg.text(stage.name, LEFT - 8, top + 15, anchor="end"),
            svg.text(stage.what, LEFT - 8, top + 29, "quiet small", "end"),
            svg.bar(LEFT, top + 8, start - LEFT, HEIGHT - 16, "c0 open"),
            svg.bar(start, top + 8, end - start, HEIGHT - 16, f"c{1 + place} full", _stage_tooltip(stage)),
        ]
        rates.append(svg.text(f"{said} ms", end + 6, top + HEIGHT / 2 + 4))
        before = stage.ms
    x = scale(copy_ms)
    parts.append(svg.path(f"M{x:.5g} {TOP - 8}V{bottom}", "mark dashed"))
    parts.append(svg.text(f"the bus alone: {svg.format_number(copy_ms)} ms", x, TOP - 12, "quiet", "middle"))
    parts += rates  # above that line
    told = "; ".join(f"{_stage_tooltip(stage)} ({stage.what})" for stage in stages)
    bus = f"The images alone take {svg.format_number(copy_ms)} ms over the bus."
    description = f"Bars, each from where the one above ends. {told}. {bus}"
    return svg.picture(name, title, description, LEFT + WIDTH + RIGHT, bottom + 28, parts)


def _stage_tooltip(stage: Stage) -> str:
    return f"{stage.name}: {svg.format_number(stage.ms)} ms"
