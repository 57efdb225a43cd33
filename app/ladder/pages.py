"""Build the HTML pages (one for each step, one for each source file, and an index), and write them into a folder."""

import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from app.base.errors import UserError, pip_install_command
from app.base.frozen import Frozen
from app.base.precision import SHORT
from app.drawing import interactives
from app.drawing.svg import Drawing, format_number
from app.kernels.problems import LinearProblem
from app.ladder import tables, tiles
from app.ladder.card import LATER, Card, Layer
from app.ladder.counting import CONSTANT_CYCLES, PARTS, ROUND_TRIP
from app.ladder.formulas import fill_formulas
from app.ladder.lessons import (
    GAP,
    LADDERS,
    Step,
    all_steps,
    changed_line_count,
    excerpt_lines,
    highlight_lines,
    ladder_steps,
)
from app.ladder.pictures import ExtraPage, draw_ladder_overview, interactive_drawings_page, pictures_page
from app.ladder.tables import FACTOR, WORDS, large_difference_reasons
from app.terminal.text import format_ms

# Change of a line → its CSS class, and its text for screen readers.
KINDS = {"+": ("plus", "added"), "-": ("minus", "removed"), " ": ("same", ""), GAP: ("gap", "left out")}
IN_LIBRARY = "This step multiplies in the library, whose machine code is not counted."
NOT_COMPILED = "What the compiler made of this step is not stored for this card."


class Page(Frozen):
    """A file of the site: its name without ``.html``, its title, and its whole HTML text."""

    name: str
    title: str
    html: str


class Pages:
    """Builds pages with a card's figures. command: shown on them as their source. more: further pages to build."""

    def __init__(self, card: Card, command: str, more: Sequence[ExtraPage] = ()) -> None:
        self.card, self.more = card, more
        dates = sorted({str(bench["date"]) for bench in card.benches.values()})
        self._common = {
            "card": card.device,
            "command": command,
            "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
            "more": more,
        }

    @cached_property
    def _page_templates(self) -> Any:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader(__package__)
        found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        found.filters |= {"coded": text_to_html, "prose": lesson_to_html, "digits": format_number}
        found.globals |= {"short": SHORT, "kinds": KINDS, "counter_words": WORDS, "parts": PARTS, "factor": FACTOR}
        found.globals |= {"round_trip": ROUND_TRIP, "constant_cycles": CONSTANT_CYCLES}
        return found

    def _fill_template(self, template: str, name: str, title: str, values: Mapping[str, Any]) -> Page:
        html = self._page_templates.get_template(f"{template}.html").render(title=title, **self._common, **values)
        return Page(name, title, html)

    def all_pages(self) -> Iterator[Page]:
        """Yield the index page, two pages for each step (lesson, source), and the further pages."""
        yield self.index_page()
        for step in all_steps():
            yield self.step_page(step)
            yield self.source_page(step)
        for text in self.more:
            yield self._fill_template(text.template, text.name, text.title, {"body": text.body, **text.values})

    def index_page(self) -> Page:
        """Return the index page: a chart of all steps, then a list of them with times on the first network."""
        ladders, sizes = [], list[dict[str, str]]()
        for operation, name in LADDERS.items():
            layers = [(step, self._times_on_first_network(step)) for step in ladder_steps(operation)]
            heads = [*dict.fromkeys(title for _, found in layers for title in found)]
            rows = [{"step": step, "times": [found.get(head) for head in heads]} for step, found in layers]
            sizes += [_size_texts(layer) for layer in self.card.layers(ladder_steps(operation)[0])]
            ladders.append({"operation": operation, "name": name.capitalize(), "heads": heads, "rows": rows})
        images = self.card.benches[self.card.networks[0]]["images"]
        values = {
            "ladders": ladders,
            "sizes": sizes,
            "images": f"{images:,}",
            "journey": draw_ladder_overview(self.card),
        }
        return self._fill_template("index", "index", "All steps", values)

    def _times_on_first_network(self, step: Step) -> Mapping[str, tuple[str, str]]:
        """Return layer → (measured ms, predicted ms), as text, for a step's layers in the pages' first network."""
        layers = (layer for layer in self.card.layers(step) if layer.network == self.card.networks[0])
        return {layer.title: (tables.ms_text(layer), format_ms(layer.prediction.ms)) for layer in layers}

    def source_page(self, step: Step) -> Page:
        """Return the page with the whole source file of a step."""
        return self._fill_template(
            "source", step.source_page_name, step.row.source, {"lines": highlight_lines(step.source), "step": step}
        )

    def step_page(self, step: Step) -> Page:
        """Return the page of a step: its lesson, drawing, changed lines, and counts and times on the card's layers."""
        layers = self.card.layers(step)
        shown = next((layer for layer in layers if layer.name == LATER), layers[0])
        order, since, parts = [*all_steps()], step.since, excerpt_lines(step)
        at = order.index(step)
        earlier = {layer.title: layer for layer in self.card.layers(since)} if since else {}
        values = {
            "step": step,
            "lesson": step.lesson,
            "since": since,
            "next": [one for one in ladder_steps(step.row.operation) if one.row.since == step.row.name],
            "shown": shown,
            "shown_before": earlier.get(shown.title, shown),
            "drawing": tiles.draw_step(step, shown.names),
            "changed": changed_line_count(step),
            "excerpt": parts,
            "removed": any(line.change == "-" for line in parts),
            "gaps": any(line.change == GAP for line in parts),
            "counts": tables.counts_per_output_table(step, layers),
            "times": tables.times_table(layers, since, earlier),
            "measured": any(layer.ms for layer in layers),
            "bars": _prediction_bars(shown),
            "counters": tables.counters_table(step, layers, earlier),
            "beside": tables.formula_and_hardware_table(layers),
            "differ": large_difference_reasons(step, layers),
            "shares": tables.busy_shares_table(layers),
            "no_counters": self._missing_counters_text(step),
            "machine": tables.compiled_kernel_table(layers),
            "no_machine": IN_LIBRARY if step.row.needs_cublas else NOT_COMPILED,
            "before": order[at - 1] if at else None,
            "after": order[at + 1] if at + 1 < len(order) else None,
        }
        return self._fill_template("step", step.page_name, step.title, values)

    def _missing_counters_text(self, step: Step) -> str:
        """Return a sentence on a page without hardware counters: why it has none, or which command reads them."""
        if step.row.needs_cublas:
            return "`profile --every-step` counts this project's own kernels alone."
        notes = [document["note"] for document in self.card.counters.values() if document.get("note")]
        if notes:
            return f"{notes[0]}."
        network = self.card.networks[0]
        command = f"python main.py profile --every-step --batch 1000 --network {network} --json FILE"
        return f"`{command}` reads them, where the driver allows it."


def lesson_to_html(text: str, layer: Layer) -> str:
    """Return a lesson's text as HTML, with its formulas' values for the layer, and text in backticks as code."""
    return text_to_html(fill_formulas(text, layer.names))


def text_to_html(text: str) -> str:
    """Return a text as HTML, with text in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _size_texts(layer: Layer) -> dict[str, str]:
    """Return texts by name for a layer: its title, and the sizes of its input, filters and output."""
    names = layer.names
    if isinstance(layer.problem, LinearProblem):
        return {"layer": layer.title, "input": f"{names['DEPTH']:,}", "filter": "", "output": f"{names['N']:,}"}
    sizes = (("input", ("C", "H", "W")), ("filter", ("K", "K")), ("output", ("M", "OH", "OW")))
    return {"layer": layer.title} | {what: " × ".join(str(names[one]) for one in own) for what, own in sizes}


def _prediction_bars(layer: Layer) -> str:
    """Return a bar chart (SVG) of the time predicted for each part of the card, and of the measured time."""
    parts = layer.prediction.parts
    values = [(words, parts[part], "bar") for part, words in PARTS.items() if parts[part]]
    if layer.ms:
        values.append(("measured", layer.ms, "measured"))
    longest = max(value for _, value, _ in values)
    told = ", ".join(f"{words} {format_ms(value) or 0} ms" for words, value, _ in values)
    drawing = Drawing(f"{layer.title}: {told}")
    for number, (words, value, kind) in enumerate(values):
        y = number * 24
        drawing.add_text(224, y + 15, words, anchor="end")
        drawing.add_rectangle(232, y + 3, max(360 * value / longest, 1), 16, kind, f"{format_ms(value) or 0} ms")
        drawing.add_text(238 + 360 * value / longest, y + 15, f"{format_ms(value) or 0} ms")
    return drawing.svg()


STATIC = Path(__file__).with_name("static")
NEEDED = {"jinja2": "Jinja2", "pygments": "Pygments", "markdown_it": "markdown-it-py"}  # module → package
MARK = "made-by-lenet5-inference"  # an empty file that marks a folder whose content may be replaced


def check_site_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` has other files than a site's, or a package that builds the pages is missing."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder: name another one")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UserError(f"{folder} holds other files than a site's: name an empty or new folder")
    for module, name in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"the pages need {name}: {pip_install_command('docs')}")


def write_site(folder: Path, card: Card, command: str, more: Sequence[ExtraPage] = ()) -> list[Path]:
    """Write all pages and the files that they load, in place of an earlier site in the folder; return the paths.

    command: shown on the pages as their source. more: pages before those with charts and interactive drawings. Raises
    UserError, also if the folder contains anything but a site.
    """
    check_site_folder(folder)
    made = [*Pages(card, command, [*more, pictures_page(card), interactive_drawings_page()]).all_pages()]
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(STATIC, unfinished)  # also creates its parents
        (unfinished / MARK).touch()
        (unfinished / "charts.css").write_text(interactives.page_style_sheet(), encoding="utf-8")
        (unfinished / "scripts").mkdir()
        for name, script in interactives.script_texts().items():
            (unfinished / "scripts" / name).write_text(script, encoding="utf-8")
        for page in made:
            (unfinished / f"{page.name}.html").write_text(page.html, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from None
    return sorted(path for path in folder.rglob("*") if path.is_file())
