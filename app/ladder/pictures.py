"""Build the page with charts of one card's measurements, and the page with interactive drawings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from html import escape
from typing import Any

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE
from app.drawing import interactives, journey, roofline, warpgroups, waterfall
from app.drawing.journey import Bar
from app.lab.document import Row
from app.ladder.card import Card, Layer
from app.ladder.lessons import Step, ladder_steps

STAMPS = "python main.py profile --precision {} --timeline FILE.html --json FILE.json"
Key = tuple[str, str]  # a step's name and number format (dtype)
Layers = Sequence[tuple[Step, Sequence[Layer]]]


class ExtraPage(Frozen):
    """A further page of the site: its name without ``.html``, its title, and its body, which is HTML.

    template, values: the template that takes the body, and the other values that it needs.
    """

    name: str
    title: str
    body: str
    template: str = "text"
    values: Mapping[str, Any] = field(default_factory=dict)


def pictures_page(card: Card) -> ExtraPage:
    """Return the page of charts: bars of the steps' times, rooflines, and the fast path over time."""
    parts = ["<h1>Pictures</h1>", "<p>All of them are drawn from the stored measurements of one card.</p>"]
    layers = [(step, card.layers(step)) for step in ladder_steps("conv")]
    for network in card.networks:
        parts += _ladder_charts(card, network, layers)
    parts += _fast_path_charts(card)
    return ExtraPage("pictures", "Pictures", "\n".join(parts))


class LadderOverview(Frozen):
    """A chart of a ladder's times, as SVG for screens (wide) and for phones (narrow).

    first, fastest: bars of these steps. same: bar of the fastest step in the number format of ``first``.
    """

    wide: str
    narrow: str
    first: Bar
    same: Bar
    fastest: Bar


def draw_ladder_overview(card: Card) -> LadderOverview | None:
    """Draw the time of each step, and of other systems, on the first network's convolutions, in reading order.

    A step has one bar, in the number format that its page shows. Return None if no step was measured.
    """
    network = card.networks[0]
    layers = [(step, card.layers(step)) for step in ladder_steps("conv")]
    formats = {step.row.name: step.dtype for step, _ in layers}
    bars = _ladder_bars(card, network, layers)
    own = sorted((bar for bar in bars if bar.step and formats[bar.name] == bar.dtype), key=lambda bar: bar.step or 0)
    if not own:
        return None
    others = [bar for bar in bars if not bar.step]
    bench, first = card.benches[network], own[0]
    what, on = f"{network}, both convolutions", f"{bench['images']:,} images, {bench['device']['name']}"
    return LadderOverview(
        journey.draw_ladder_chart([*others, *own], f"{what}: {on}"),
        journey.draw_ladder_chart([*others, *own], what, "journey-narrow", journey.NARROW),
        first,
        min((bar for bar in own if bar.dtype == first.dtype), key=lambda bar: bar.ms),
        min(own, key=lambda bar: bar.ms),
    )


def interactive_drawings_page() -> ExtraPage:
    """Return the page with the interactive drawings."""
    intro = (
        "<h1>Try it</h1>\n<p>Three things to move. Without JavaScript the text below says what they show at first.</p>"
    )
    drawings = map(interactives.interactive_drawing_html, interactives.INTERACTIVES)
    return ExtraPage("interactives", "Try it", "\n".join([intro, *drawings]))


def _ladder_charts(card: Card, network: str, layers: Layers) -> Iterator[str]:
    """Yield HTML: a bar chart of the steps' times on a network's convolutions, and the roofline of each convolution."""
    bench = card.benches[network]
    on = f"{bench['images']:,} images, {bench['device']['name']}"
    yield f'<h2 id="journey-{network}">{escape(network)}: every step of the convolution</h2>'
    yield (
        "<p>Each bar is the time of both convolutions. Steps that lost stay: they are hatched. The mark is the time "
        "that the step's counts predict, as its page explains; no kernel with these counts can be faster.</p>"
    )
    bars = _ladder_bars(card, network, layers)
    yield _html_figure(
        journey.draw_ladder_chart(bars, f"{network}, both convolutions: {on}", f"journey-{network}-chart")
    )
    if counted := {row["images"] for row in card.counters.get(network, {}).get("rows", ())}:
        images = " or ".join(f"{count:,}" for count in sorted(counted))
        yield (
            f"<p>In the rooflines, filled points have the bytes that the hardware counted for {images} images; what "
            "stays in the L2 cache is not among them. FLOPs are those of the convolution's definition: a step with "
            "fewer multiplications can lie above the roof.</p>"
        )
    for table in (table for table in bench["tables"] if table["is_op"]):
        item = table["item"]
        points = roofline.roofline_points(bench, item, _dram_bytes(bench, network, item, layers))
        name = f"roofline-{network}-{item}"
        yield f'<h3 id="{name}">{escape(network)}, {item}: the roofline</h3>'
        yield _html_figure(roofline.draw_roofline(points, bench["peaks"], f"{network}, {item}: {on}", f"{name}-chart"))


def _fast_path_charts(card: Card) -> Iterator[str]:
    """Yield HTML: charts of the time that each stage of the fast path adds, and of its warpgroups over time."""
    if card.reports or card.timelines:
        yield '<h2 id="fast-path">The fast path</h2>'
    for precision, report in card.reports.items():
        stages = waterfall.stages_from_report(report)
        title = f"{precision}: {report['batch']:,} images of lenet5, {report['device']['name']}"
        yield _html_figure(waterfall.draw_waterfall(stages, title, report["raw_copy_ms"]["p50"], f"budget-{precision}"))
    for precision, profile in card.timelines.items():
        timeline = profile["timeline"]
        what = f"{precision}, {profile['batch']:,} images of lenet5, {profile['device']['name']}"
        yield f'<h3 id="warpgroups-{precision}">One multiprocessor, {precision}</h3>'
        rows = timeline["warpgroups"]
        bus = " Most of the time they wait for images: the bus brings them more slowly than they are computed."
        yield (
            "<p>Each row is a warpgroup. While one pools, the tensor cores are free for the others: that is why there "
            f"are several. For {warpgroups.idle_share(rows):.0%} of the time none of them multiplies."
            f"{bus if warpgroups.waiting_share(rows) > 1 / 2 else ''}</p>"
        )
        yield _html_figure(
            warpgroups.draw_warpgroup_timeline(timeline, f"Warpgroups: {what}", f"warpgroups-{precision}-chart")
        )
        yield _html_figure(warpgroups.draw_bus_chart(timeline, f"Bus and kernels: {what}", f"bus-{precision}-chart"))
    if card.reports and not card.timelines:
        commands = " or ".join(f"<code>{STAMPS.format(precision)}</code>" for precision in card.reports)
        yield f'<p class="note">What the warpgroups do when is not stored for this card: {commands} measures it.</p>'


def _ladder_bars(card: Card, network: str, layers: Layers) -> list[Bar]:
    """Return a bar for each step and other system: the measured and predicted sums of all convolutions' times."""
    bench, since = card.benches[network], {step.row.name: step.row.since for step, _ in layers}
    predicted = _predicted_convolution_ms(bench, network, layers)
    links = {(step.row.name, dtype): f"{step.page_name}.html" for step, _ in layers for dtype in BY_DTYPE}
    return journey.bars_from_bench(bench, predicted=predicted, links=links, since=since)


def _html_figure(chart: str) -> str:
    return f"<figure>{chart}</figure>"


def _predicted_convolution_ms(bench: Row, network: str, layers: Layers) -> dict[Key, float]:
    """Return (step, number format) → predicted ms of all convolutions together, for the steps that can compute all."""
    ops = {table["item"] for table in bench["tables"] if table["is_op"]}
    found: dict[Key, float] = {}
    for step, served in layers:
        own = [layer for layer in served if layer.network == network and layer.name in ops]
        if {layer.name for layer in own} == ops:
            found[step.row.name, step.dtype] = sum(layer.prediction.ms for layer in own)
    return found


def _dram_bytes(bench: Row, network: str, item: str, layers: Layers) -> dict[Key, float]:
    """Return (step, number format) → bytes read and written in device memory on the layer ``item``, as counted."""
    found: dict[Key, float] = {}
    for step, served in layers:
        for layer in served:
            counts = layer.counters.get("counts", {})
            moved = [counts.get(name) for name in ("dram_read", "dram_written")]
            if (layer.network, layer.name) == (network, item) and None not in moved:
                found[step.row.name, step.dtype] = sum(moved) * bench["images"] / layer.counters["images"]
    return found
