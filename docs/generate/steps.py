"""Write a section of docs/kernels.md for each step: its idea, its lesson, and its measured speed-up."""

from collections.abc import Mapping

from app.base.precision import SHORT
from app.drawing.journey import measured_predecessor
from app.kernels.registry import variants
from app.kernels.variant import Variant
from app.ladder.card import EXAMPLE, LATER, Card
from app.ladder.formulas import fill_formulas as computed
from app.ladder.lessons import Step, ladder_steps
from app.main_job.statistics import speedup
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import Figures
from docs.generate.tables import format_share, wrap_paragraph

LARGE_LAYER = "fc1"


def step_sections(operation: str, figures: Figures) -> str:
    """Return the sections of one ladder, in order."""
    card = Card({EXAMPLE: figures.bench(EXAMPLE).document}, {})
    return "\n\n".join(_step_section(step, card, figures) for step in ladder_steps(operation))


def _step_section(step: Step, card: Card, figures: Figures) -> str:
    row, lesson = step.row, step.lesson
    layers = [*card.layers(step)]
    names = next((layer for layer in layers if layer.name == LATER), layers[0]).names
    since = f" `{row.name}` continues `{row.since}`." if row.since and f"`{row.since}`" not in row.idea else ""
    idea = row.idea.replace("*", r"\*")
    texts = (
        f"[{row.source}](../app/kernels/{row.operation}/{row.source}). {idea}{since} {lesson.change} "
        f"{_origin_sentence(row)}",
        lesson.detail,
        f"**Bound by:** {lesson.bound}",
    )
    prose = [wrap_paragraph(computed(text, names)) for text in texts if text]
    return "\n\n".join(
        [f"### {row.step} `{row.name}`: {lesson.title}", *prose, step_speedup_text(row.operation, row.name, figures)]
    )


def _origin_sentence(row: Variant) -> str:
    if row.system.startswith(("none", "the yardstick")):
        return f"No older report had a kernel like `{row.name}`."
    *others, last = (f"`{system}`" for system in row.system.split(", "))
    reports = f"reports on {', '.join(others)} and {last}" if others else f"report on {last}"
    return f"The older {reports} had the idea of `{row.name}`."


def step_speedup_text(operation: str, name: str, figures: Figures) -> str:
    """Return the times of a step on every network, and its speed-up over the step that it continues."""
    rows = {row.name: row for row in variants(operation)}
    types = ("float32",) if "float32" in rows[name].dtypes else rows[name].dtypes
    timed = [dtype for dtype in types if any(_times_by_network(figures, operation, name, dtype))]
    if not timed:
        return "Not measured."
    return wrap_paragraph(" ".join(_gain_sentence(figures, rows, name, dtype) for dtype in timed))


def _times_by_network(figures: Figures, operation: str, name: str, dtype: str) -> list[float | None]:
    """Return the time of a step on each network, in ms; None if it was not measured."""
    return [bench.ms(name, dtype, _timed_item(operation)) for bench in figures.benches.values()]


def _timed_item(operation: str) -> str | None:
    return None if operation == "conv" else LARGE_LAYER


def _gain_sentence(figures: Figures, rows: Mapping[str, Variant], name: str, dtype: str) -> str:
    operation = rows[name].operation
    since = {row.name: row.since for row in rows.values()}
    found = measured_predecessor(since, name, dtype, lambda *key: any(_times_by_network(figures, operation, *key)))
    base, base_dtype = found or ("", dtype)
    item, parts = _timed_item(operation), []
    base_times = _times_by_network(figures, operation, base, base_dtype)
    times = _times_by_network(figures, operation, name, dtype)
    for network, ms, base_ms in zip(figures.benches, times, base_times, strict=True):
        if ms is not None:
            gained = speedup(base_ms, ms)
            parts.append(f"{format_ms(ms)} ms for `{network}`" + (f" (×{format_factor(gained)})" if gained else ""))
    kind = f" in {SHORT[base_dtype]}" if base_dtype != dtype else ""
    against = f"; × is the speed-up over `{base}`{kind}" if base else ""
    first = next(iter(figures.benches.values()))
    items = [item] if item else [single["item"] for single in first.convolution_tables]
    shares = [
        f"{text} on {item}" for item in items if (text := format_share(first.row(item, name, dtype), "of the {} peak"))
    ]
    peaks = f" On `{first.network}`, `{name}` reaches {' and '.join(shares)}." if shares else ""
    takes = f"{item} takes" if item else "conv1 and conv2 together take"
    times_text = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"In {SHORT[dtype]}, {takes} {times_text}{against}.{peaks}"
