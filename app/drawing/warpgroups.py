"""Draw what one multiprocessor's warpgroups do over time, and how many images are on the bus or in kernels."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from app.drawing import svg

LEFT, WIDTH, ROW, TOP = 110, 800, 26, 66
ZOOM = 8  # magnification of the second strip
# Phase → class of its colour, class of its shape, and what it means.
PHASES = {
    "stage": ("c0", "open", "waits for images, writes windows"),
    "conv1": ("c5", "full", "conv1 on the tensor cores"),
    "pool": ("c3", "open", "ReLU and pooling"),
    "load": ("c0", "full", "requests the next images"),
    "conv2": ("c1", "full", "conv2 on the tensor cores"),
    "store": ("c2", "open", "pooling, stores features"),
}
MULTIPLIES = ("conv1", "conv2")
CURVES = {"requested": "c5", "staged": "c1", "computed": "c3"}
CURVE_MEANINGS = {"requested": "images requested", "staged": "images arrived and staged", "computed": "images computed"}
Span = Sequence[Any]  # (phase, start, stop) in µs
Interval = tuple[float, float]


def draw_warpgroup_timeline(timeline: Mapping[str, Any], title: str, name: str = "warpgroups") -> str:
    """Return a chart (SVG) of a profile's ``timeline``: a row for each warpgroup, and below an enlarged part."""
    rows: Sequence[Sequence[Span]] = timeline["warpgroups"]
    end = max(stop for spans in rows for _, _, stop in spans)
    part = (end / 2 - end / ZOOM / 2, end / 2 + end / ZOOM / 2)
    strip = ROW * (len(rows) + 1) + 50
    parts = [svg.text(title, 8, 20, "head"), *_draw_legend()]
    parts += _draw_timeline_strip(rows, (0, end), TOP + 20)
    parts += _draw_timeline_strip(rows, part, TOP + 20 + strip)
    busy = [sum(stop - start for phase, start, stop in spans if phase in MULTIPLIES) / end for spans in rows]
    shares = ", ".join(f"{share:.0%}" for share in busy)
    description = (
        f"Multiprocessor {timeline['multiprocessor']}, {svg.format_number(end)} µs, a row for each of {len(rows)} "
        f"warpgroups: it multiplies {shares} of the time. For {idle_share(rows):.0%} of the time none of them "
        f"multiplies. The lower rows enlarge {svg.format_number(part[0])} to {svg.format_number(part[1])} µs."
    )
    return svg.picture(name, title, description, LEFT + WIDTH + 30, TOP + 20 + 2 * strip, parts)


def idle_share(rows: Sequence[Sequence[Span]]) -> float:
    """Return the share (0 to 1) of time in which no warpgroup multiplies. rows: (phase, start, stop) by warpgroup."""
    end = max(stop for spans in rows for _, _, stop in spans)
    return 1 - sum(stop - start for start, stop, count in multiplying_warpgroup_counts(rows) if count) / end


def waiting_share(rows: Sequence[Sequence[Span]]) -> float:
    """Return the share (0 to 1) of all warpgroups' time in which they wait for images or arrange them for kernels."""
    spent = [(phase, stop - start) for spans in rows for phase, start, stop in spans]
    return sum(time for phase, time in spent if phase == "stage") / sum(time for _, time in spent)


def multiplying_warpgroup_counts(rows: Iterable[Sequence[Span]]) -> list[tuple[float, float, int]]:
    """Return (start µs, stop µs, number of multiplying warpgroups) for each interval between changes of that number."""
    changes: dict[float, int] = {}
    for spans in rows:
        for phase, start, stop in spans:
            if phase in MULTIPLIES:
                changes[start] = changes.get(start, 0) + 1
                changes[stop] = changes.get(stop, 0) - 1
    at, count = sorted(changes), 0
    found = []
    for start, stop in pairwise(at):
        count += changes[start]
        found.append((start, stop, count))
    return found


def _draw_timeline_strip(rows: Sequence[Sequence[Span]], shown: Interval, top: float) -> list[str]:
    scale = svg.linear_scale(*shown, LEFT, LEFT + WIDTH)
    bottom = top + ROW * (len(rows) + 1)
    ticks = (shown[0] + tick for tick in svg.linear_ticks(shown[1] - shown[0], 8))
    parts = svg.horizontal_axis(ticks, scale, top - 4, bottom, lambda tick: f"{svg.format_number(tick)} µs")
    for place, spans in enumerate(rows):
        y = top + place * ROW
        parts.append(svg.text(f"warpgroup {place}", LEFT - 8, y + ROW / 2 + 3, anchor="end"))
        for phase, start, stop in spans:
            left, right = scale(max(start, shown[0])), scale(min(stop, shown[1]))
            if right > left:
                colour, shape, meaning = PHASES[phase]
                tall = ROW - 6 if phase in MULTIPLIES else ROW - 14
                told = f"{meaning}: {svg.format_number(stop - start)} µs"
                parts.append(svg.bar(left, y + (ROW - tall) / 2, right - left, tall, f"{colour} {shape}", told))
    y = top + len(rows) * ROW
    parts.append(svg.text("in a product", LEFT - 8, y + ROW / 2 + 3, "quiet", "end"))
    for start, stop, count in multiplying_warpgroup_counts(rows):
        left, right = scale(max(start, shown[0])), scale(min(stop, shown[1]))
        if right > left and count:
            high = (ROW - 4) * count / len(rows)
            parts.append(svg.bar(left, y + ROW - 2 - high, right - left, high, "c6 full", f"{count} of {len(rows)}"))
    parts.append(svg.path(f"M{LEFT} {bottom}h{WIDTH}", "axis"))
    return parts


def _draw_legend() -> list[str]:
    samples = {
        meaning: svg.bar(
            -8, -6 if phase in MULTIPLIES else -4, 16, 12 if phase in MULTIPLIES else 8, f"{colour} {shape}"
        )
        for phase, (colour, shape, meaning) in PHASES.items()
    }
    named = list(samples.items())
    return [*svg.legend(dict(named[:3]), 8, 46), *svg.legend(dict(named[3:]), 8, 68)]


def draw_bus_chart(timeline: Mapping[str, Any], title: str, name: str = "bus") -> str:
    """Return a chart (SVG) of how many images were requested over the bus, had arrived and were computed, over time.

    timeline: of a profile document. The horizontal distance of two curves is time; the vertical one is images in
    flight.
    """
    found = timeline["images"]
    times, total = found["us"], max(found["computed"])
    plain = timeline["end_to_end_ms"]["plain"] * 1e3
    copy = timeline["raw_copy_ms"] * 1e3
    high, bottom, height = max(times[-1], plain, copy) * 1.02, 400, 310
    x = svg.linear_scale(0, high, LEFT, LEFT + WIDTH)
    y = svg.linear_scale(0, total * 1.04, bottom, bottom - height)
    parts = [svg.text(title, 8, 20, "head")]
    us = svg.linear_ticks(high, 8)
    parts += svg.horizontal_axis(us, x, bottom - height, bottom, lambda tick: f"{svg.tick_text(tick)} µs")
    parts += svg.vertical_axis(svg.linear_ticks(total, 5), y, LEFT, LEFT + WIDTH, svg.tick_text)
    ideal = f"M{x(0):.5g} {y(0):.5g}L{x(copy):.5g} {y(total):.5g}"
    parts.append(svg.path(ideal, "axis dashed"))
    for (curve, colour), dashes in zip(CURVES.items(), ("dashed", "", ""), strict=True):
        line = "L".join(f"{x(time):.5g} {y(count):.5g}" for time, count in zip(times, found[curve], strict=True))
        parts.append(svg.path(f"M{line}", f"{colour} {'thin' if curve == 'requested' else 'curve'} {dashes}".strip()))
    dots = list(zip(times, found["computed"], strict=True))[5::10]  # the curve can be told apart without its colour
    parts += [svg.dot(x(time), y(count), "c3 open", radius=3.5) for time, count in dots]
    parts.append(svg.path(f"M{x(plain):.5g} {bottom - height}V{bottom}", "mark dashed"))
    parts.append(svg.text(f"labels readable: {svg.format_number(plain)} µs", x(plain) - 6, bottom - 8, anchor="end"))
    entries = {
        CURVE_MEANINGS[curve]: svg.path("M-8 0h16", f"{colour} {'thin dashed' if curve == 'requested' else 'curve'}")
        for curve, colour in CURVES.items()
    }
    entries[CURVE_MEANINGS["computed"]] += svg.dot(0, 0, "c3 open", radius=3.5)
    entries[f"the copy engine alone: {svg.format_number(copy)} µs"] = svg.path("M-8 0h16", "axis dashed")
    parts += svg.legend(entries, 8, 46)
    ahead = max(staged - computed for staged, computed in zip(found["staged"], found["computed"], strict=True))
    flight = max(asked - staged for asked, staged in zip(found["requested"], found["staged"], strict=True))
    description = (
        f"{total:,} images over {svg.format_number(times[-1])} µs, {timeline['images_are']}. At most {flight:,} images "
        f"were requested and not yet staged, at most {ahead:,} staged and not yet computed. One copy of the same bytes "
        f"takes {svg.format_number(copy)} µs; end to end takes {svg.format_number(plain)} µs."
    )
    return svg.picture(name, title, description, LEFT + WIDTH + 30, bottom + 34, parts)
