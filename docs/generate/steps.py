"""Write a section of docs/kernels.md for each step: its idea, its lesson, and its measured speed-up."""

from collections.abc import Mapping

from app.base.precision import SHORT
from app.drawing.journey import measured_predecessor
from app.kernels.registry import variants
from app.kernels.variant import Variant
from app.ladder.card import EXAMPLE, LATER, Card
from app.ladder.formulas import fill_formulas
from app.ladder.lessons import Step, ladder_steps
from app.main_job.statistics import speedup
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import Figures
from docs.generate.tables import format_share, wrap_paragraph

LARGE_LAYER, REPORTS = "fc1", "[systems.md](systems.md)"


def step_sections(operation: str, figures: Figures) -> str:
    """Return the sections of all steps of an operation (``conv`` or ``gemm``), in order."""
    card = Card({EXAMPLE: figures.bench(EXAMPLE).document}, {})
    return "\n\n".join(_step_section(step, card, figures) for step in ladder_steps(operation))


def _step_section(step: Step, card: Card, figures: Figures) -> str:
    row, lesson = step.row, step.lesson
    layers = card.layers(step)
    names = next((layer for layer in layers if layer.name == LATER), layers[0]).names
    since = f" `{row.name}` builds on `{row.since}`." if row.since and f"`{row.since}`" not in row.idea else ""
    idea = row.idea.replace("*", r"\*")
    texts = (
        f"Source: [{row.source}](../app/kernels/{row.operation}/{row.source}). {idea}{since} {lesson.change} "
        f"{_origin_sentence(row)}",
        lesson.detail,
        f"**Bound by:** {lesson.bound}",
    )
    prose = [wrap_paragraph(fill_formulas(text, names)) for text in texts if text]
    return "\n\n".join(
        [f"### {row.step} `{row.name}`: {lesson.title}", *prose, step_speedup_text(row.operation, row.name, figures)]
    )


def _origin_sentence(row: Variant) -> str:
    if row.system.startswith(("none", "the yardstick")):
        return f"No kernel of the five reports ({REPORTS}) is like `{row.name}`."
    *others, last = (f"`{system}`" for system in row.system.split(", "))
    reports = f"reports on {', '.join(others)} and {last}" if others else f"report on {last}"
    return f"`{row.name}` is based on the {reports} ({REPORTS})."


def step_speedup_text(operation: str, name: str, figures: Figures) -> str:
    """Return sentences: a step's times on every network, and its speed-up over the step that it builds on."""
    rows = {row.name: row for row in variants(operation)}
    types = ("float32",) if "float32" in rows[name].dtypes else rows[name].dtypes
    sentences = (_speedup_sentences(figures, rows, name, dtype) for dtype in types)
    return wrap_paragraph(" ".join(filter(None, sentences)) or "Not measured.")


def _times_by_network(figures: Figures, item: str | None, name: str, dtype: str) -> list[float | None]:
    """Return a step's ms on each network, None if not measured. item: a layer, or None for the sum of convolutions."""
    return [bench.ms(name, dtype, item) for bench in figures.benches.values()]


def _speedup_sentences(figures: Figures, rows: Mapping[str, Variant], name: str, dtype: str) -> str:
    """Return sentences on a step's times in one number format; empty if it was not measured.

    The times are sums over both convolutions, or of one layer if the step does not compute both. rows: by step name.
    """
    items = (None, LATER) if rows[name].operation == "conv" else (LARGE_LAYER,)
    measured = [item for item in items if any(_times_by_network(figures, item, name, dtype))]
    if not measured:
        return ""
    item, parts, since = measured[0], [], {row.name: row.since for row in rows.values()}
    found = measured_predecessor(since, name, dtype, lambda *key: any(_times_by_network(figures, item, *key)))
    base, base_dtype = found or ("", dtype)
    base_times = _times_by_network(figures, item, base, base_dtype)
    times = _times_by_network(figures, item, name, dtype)
    against = f" as fast as `{base}`" + (f" in {SHORT[base_dtype]}" if base_dtype != dtype else "")
    for network, ms, base_ms in zip(figures.benches, times, base_times, strict=True):
        if ms is not None:
            gain = f" ({format_factor(gained)} times{against})" if (gained := speedup(base_ms, ms)) else ""
            parts.append(f"{format_ms(ms)} ms for `{network}`{gain}")
            against = "" if gain else against
    first = next(iter(figures.benches.values()))
    layers = [item] if item else [single["item"] for single in first.convolution_tables]
    shares = [
        f"{text} on {layer}"
        for layer in layers
        if (text := format_share(first.row(layer, name, dtype), "of the peak {} rate"))
    ]
    peaks = f" On `{first.network}`, `{name}` reaches {' and '.join(shares)}." if shares else ""
    times_text = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    computes = f"`{name}` computes {item or 'conv1 and conv2 together'} in"
    return f"In {SHORT[dtype]}, {computes} {times_text}.{peaks}"
