"""Fill the pages: one for each step, one for each source file, and the first page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from app.bench.profile.step_counters import COUNTERS, per_output
from app.lessons import tiles
from app.lessons.card import LATER, Card, Layer
from app.lessons.counting import COUNTS, PARTS, ROUND_TRIP
from app.lessons.drawing import Drawing
from app.lessons.excerpt import Line, changed_by, coloured, excerpt
from app.lessons.formulas import exact, filled
from app.lessons.pictures import Text
from app.lessons.steps import LADDERS, Step, ladder, steps
from app.precision import SHORT
from app.text import format_factor, format_ms

KINDS = {"+": ("plus", "added"), "-": ("minus", "removed"), " ": ("same", "")}
DASH = "–"
# Class of a drawing's parts → its words under the drawing.
KEYS = {
    "thread": "what the marked thread reads",
    "neighbour": "its neighbour's, or the other operand",
    "warp": "a warp's threads",
    "own": "outputs, or sums",
}
IN_LIBRARY = "This step multiplies in the library, whose machine code is not counted."
NOT_COMPILED = "What the compiler made of this step is not stored for this card."


@dataclass(frozen=True)
class Page:
    """One file of the site: its name without ``.html``, its title, and the whole text."""

    name: str
    title: str
    html: str


class Pages:
    """The pages of one card. more: further pages, which every page links to. command: what made the site."""

    def __init__(self, card: Card, command: str, more: Sequence[Text] = ()) -> None:
        self.card, self.more = card, more
        dates = sorted({str(bench["date"]) for bench in card.benches.values()})
        self._common = {
            "card": card.device,
            "command": command,
            "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
            "more": more,
        }

    @cached_property
    def _templates(self) -> Any:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader(__package__)
        return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)

    def _page(self, template: str, name: str, title: str, values: Mapping[str, Any]) -> Page:
        html = self._templates.get_template(f"{template}.html").render(title=title, **self._common, **values)
        return Page(name, title, html)

    def all(self) -> Iterator[Page]:
        """Return every page."""
        yield self.index()
        for step in steps():
            yield self.step(step)
            yield self.source(step)
        for text in self.more:
            yield self._page("text", text.name, text.title, {"body": text.body})

    def index(self) -> Page:
        """The first page: all steps, with the first network's times."""
        ladders = []
        for operation, name in LADDERS.items():
            rows, heads = [], dict[str, None]()
            for step in ladder(operation):
                layers = [layer for layer in self.card.layers(step) if layer.network == self.card.networks[0]]
                heads |= dict.fromkeys(layer.title for layer in layers)
                times = [cell for layer in layers for cell in (format_ms(layer.prediction.ms), _ms(layer))]
                since = step.since
                rows.append(
                    {
                        "slug": step.slug,
                        "title": step.title,
                        "idea": step.lesson.title,
                        "since": since.title if since else "",
                        "changed": changed_by(step) if since else "",
                        "dtype": SHORT[step.dtype],
                        "times": times,
                    }
                )
            ladders.append({"operation": operation, "name": name.capitalize(), "heads": [*heads], "rows": rows})
        images = next(iter(self.card.benches.values()))["images"]
        values = {"ladders": ladders, "parts": PARTS, "round_trip": ROUND_TRIP, "images": f"{images:,}"}
        return self._page("index", "index", "All steps", values)

    def source(self, step: Step) -> Page:
        """A step's whole file."""
        values = {"lines": coloured(step.source), "slug": step.slug, "step": step.title}
        return self._page("source", source_page(step), step.row.source, values)

    def step(self, step: Step) -> Page:
        """One step."""
        layers = [*self.card.layers(step)]
        shown = next((layer for layer in layers if layer.name == LATER), layers[0])
        order = [*steps()]
        at, lesson, since = order.index(step), step.lesson, step.since
        drawn = tiles.draw(step, shown.names)
        values = {
            "ladder": step.ladder.capitalize(),
            "step": step.row.step,
            "name": step.row.name,
            "since": since,
            "next": [one for one in ladder(step.row.operation) if one.row.since == step.row.name],
            "lesson_title": lesson.title,
            "idea": step.idea,
            "drawing": drawn,
            "keys": [{"kind": kind, "words": words} for kind, words in KEYS.items() if f'class="{kind}"' in drawn],
            "drawing_of": f"As launched for {shown.title}, in {SHORT[step.dtype]}",
            "change_title": "What changed" if since else "The heart of the file",
            "source": step.row.source,
            "source_page": f"{source_page(step)}.html",
            "since_source": since.row.source if since else "",
            "since_page": f"{source_page(since)}.html" if since else "",
            "changed": changed_by(step),
            "excerpt": [_line(line) for line in excerpt(step)],
            "counts": _counts(step, layers),
            "times": _times(layers),
            "bars": _bars(shown),
            "bars_of": f"{shown.title}: how long each part would be busy, and the measured time",
            "proof": prose(lesson.proof, shown),
            "counters": _counters(step, layers),
            "no_counters": prose(self._no_counters(step), shown),
            "machine": _machine(layers),
            "no_machine": IN_LIBRARY if step.row.needs_cublas else NOT_COMPILED,
            "bound": prose(lesson.bound, shown),
            "task": prose(lesson.exercise.task, shown),
            "check": lesson.exercise.command,
            "answer": prose(lesson.exercise.answer, shown),
            "before": order[at - 1] if at else None,
            "after": order[at + 1] if at + 1 < len(order) else None,
        }
        return self._page("step", step.slug, step.title, values)

    def _no_counters(self, step: Step) -> str:
        notes = [document["note"] for document in self.card.counters.values() if document.get("note")]
        if notes:
            return f"{notes[0]}."
        network = self.card.networks[0]
        command = f"python main.py profile --every-step --batch 1000 --network {network} --json FILE"
        return f"`{command}` reads them, where the driver allows it."


def source_page(step: Step) -> str:
    """The name of the page with a step's whole file."""
    return f"file-{step.row.source.removesuffix('.cu')}"


def prose(text: str, layer: Layer) -> str:
    """Return a lesson's text as HTML: formulas computed for the layer, code between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(filled(text, layer.names), quote=False))


def _line(line: Line) -> dict[str, str]:
    kind, told = KINDS[line.change]
    return {"kind": kind, "told": told, "change": line.change, "html": line.html}


def _ms(layer: Layer) -> str:
    return format_ms(layer.ms) or DASH


def _row(name: str, cells: Sequence[str], note: str = "", strong: bool = False, bound: Sequence[bool] = ()) -> Any:
    marks = bound or [False] * len(cells)
    shown = [{"text": cell, "bound": mark} for cell, mark in zip(cells, marks, strict=True)]
    return {"name": name, "note": note, "cells": shown, "strong": strong}


def _table(caption: str, first: str, layers: Sequence[Layer], rows: Sequence[Any], notes: str = "") -> Any:
    heads = [layer.title for layer in layers]
    return {"caption": caption, "first": first, "notes": notes, "heads": heads, "rows": rows}


def _counts(step: Step, layers: Sequence[Layer]) -> Any:
    rows = []
    for name, (words, default) in COUNTS.items():
        if not any(layer.counts[name] for layer in layers):
            continue
        note = step.lesson.counts.get(name, default)
        if name == "slots" and layers[0].loop:
            note = "products × the hottest loop's instructions for each"
        rows.append(_row(words, [exact(layer.counts[name]) for layer in layers], note))
    helpers = {name: formula for name, formula in step.lesson.counts.items() if name not in COUNTS}
    where = "".join(f"; {name} = {formula}" for name, formula in helpers.items())
    caption = f"What a thread does for one output, by the row's parameters and the layer's shape{where}"
    return _table(caption, "count", layers, rows, "formula")


def _times(layers: Sequence[Layer]) -> Any:
    rows = [
        _row(
            words[:1].upper() + words[1:],
            [format_ms(layer.prediction.parts[part]) or "0" for layer in layers],
            bound=[layer.prediction.bound == part for layer in layers],
        )
        for part, words in PARTS.items()
    ]
    rows.append(_row("Predicted: no less than", [format_ms(layer.prediction.ms) for layer in layers], strong=True))
    rows.append(_row("Measured", [_ms(layer) for layer in layers], strong=True))
    ratios = [format_factor(layer.ms / layer.prediction.ms) if layer.ms else DASH for layer in layers]
    rows.append(_row("Measured ÷ predicted", ratios))
    images = layers[0].names["BATCH"]
    return _table(f"Milliseconds for {images:,} images; the longest part is bold", "part of the card", layers, rows)


def _bars(layer: Layer) -> str:
    """Draw the parts of a prediction beside the measured time."""
    values = [(words, layer.prediction.parts[part], "bar") for part, words in PARTS.items()]
    if layer.ms:
        values.append(("measured", layer.ms, "measured"))
    longest = max(value for _, value, _ in values)
    told = ", ".join(f"{words} {format_ms(value) or 0} ms" for words, value, _ in values)
    drawing = Drawing(f"{layer.title}: {told}")
    for number, (words, value, kind) in enumerate(values):
        y = number * 24
        drawing.text(224, y + 15, words, anchor="end")
        drawing.area(232, y + 3, max(360 * value / longest, 1), 16, kind, f"{format_ms(value) or 0} ms")
        drawing.text(238 + 360 * value / longest, y + 15, f"{format_ms(value) or 0} ms")
    return drawing.svg()


def _counters(step: Step, layers: Sequence[Layer]) -> Any:
    counted = [layer for layer in layers if layer.counters]
    if not counted:
        return None
    rows = []
    for name in step.lesson.proven_by:
        cells = []
        for layer in counted:
            value = layer.counters["counts"].get(name)
            outputs = layer.names["OUTPUTS"] * layer.counters["images"]
            cells.append(DASH if value is None else exact(per_output(name, value, outputs)))
        unit = "%" if COUNTERS[name].unit == "%" else "per output"
        rows.append(_row(f"{COUNTERS[name].words}, {unit}", cells))
    return _table("Hardware counters (Nsight Compute), the kernel alone on the card", "counter", counted, rows)


def _machine(layers: Sequence[Layer]) -> Any:
    known = [layer for layer in layers if layer.resources and layer.network == layers[0].network]
    if not known:
        return None
    resources = (("registers of a thread", "registers"), ("blocks on a multiprocessor", "blocks"))
    rows = [_row(words, [f"{layer.resources[name]:,}" for layer in known]) for words, name in resources]
    shared = [layer.resources["static_shared"] + layer.resources["dynamic_shared"] for layer in known]
    rows.insert(1, _row("bytes of shared memory of a block", [f"{size:,}" for size in shared]))
    rows.append(
        _row("most of the threads that fit (occupancy)", [f"{one.resources['occupancy']:.0%}" for one in known])
    )
    loops = [layer.loop for layer in known]
    for words, name in (
        ("hottest loop: instructions", "instructions"),
        ("… that multiply", "multiply"),
        ("… that load from global memory", "global_load"),
        ("… from shared memory", "shared_load"),
        ("… from constant memory", "constant_load"),
    ):
        if any(loops):
            rows.append(_row(words, [str(loop[name]) if loop else "unrolled whole" for loop in loops]))
    return _table("What the compiler made of it", "machine code", known, rows)
