"""The old reports' figures beside ours."""

from __future__ import annotations

from app.bench.stored_figures import Bench, OldReport, OldVersion
from app.precision import BY_NAME
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms


def beside_old(bench: Bench, report: OldReport) -> tuple[str, list[str], list[list[str]]]:
    """The report's versions with their figures, and what does the same here, over the same number of images.

    Title, head and rows of a table.
    """
    rows = []
    for old in report.versions:
        there = [format_ms(ms) for ms in old.ops] or ["", ""]
        own: list[float | None] = [None, None, None]
        if old.variant and not report.whole_program:
            total = bench.total(old.variant, old.dtype, old.images)
            own = [*(total["ops"].get(op["item"]) for op in bench.ops), total["sum_ms"]] if total else own
        elif old.variant:
            own[2] = _whole_ms(bench, old.variant, old.images)
        rows.append(
            [
                old.version,
                f"{old.images:,}",
                *there,
                _sum(old),
                old.variant or "–",
                *map(format_ms, own),
                format_factor(speedup(old.sum_ms, own[2])),
            ]
        )
    rows += _best_here(bench, report)
    what, here = "conv1, conv2 and their sum", "the same steps"
    if report.whole_program:
        what, here = "the whole program", f"{here}, from images in page-locked memory to labels on the host,"
    head = ["version of the report", "images", "conv1 ms", "conv2 ms", "ms", "here", "conv1 ms", "conv2 ms", "ms", "×"]
    if report.whole_program:  # there are no op times to show
        keep = (0, 1, 4, 5, 8, 9)
        head, rows = [head[at] for at in keep], [[row[at] for at in keep] for row in rows]
    cpu = bench.document["cpu"]
    where = f"{bench.document['device']['name']}, {bench.document['date']}"
    where += f" (CPU: {cpu['name']}, one thread, NumPy {cpu['numpy']})"
    return f"The report of {report.year} ({report.card}), {what}; here: {here} on {where}:", head, rows


def _sum(old: OldVersion) -> str:
    return f"{'< ' if old.at_most else ''}{format_ms(old.sum_ms)}"


def _best_here(bench: Bench, report: OldReport) -> list[list[str]]:
    """Our best in each type over the report's largest batch, and how many times as fast as its best that is."""
    images = max(old.images for old in report.versions)
    theirs = min((old for old in report.versions if old.images == images), key=lambda old: old.sum_ms)
    rows = []
    for precision in (BY_NAME["fp32"], BY_NAME["fp16"]):
        own: list[float | None] = [None, None, None]
        name = "auto"
        if report.whole_program:
            own[2] = _whole_ms(bench, name, images, precision.name)
        elif (best := bench.best_total(precision.dtype, images)) is not None:
            name = best["name"]
            own = [*(best["ops"].get(op["item"]) for op in bench.ops), best["sum_ms"]]
        if own[2] is not None:
            there = [*([format_ms(ms) for ms in theirs.ops] or ["", ""]), _sum(theirs)]
            gain = format_factor(speedup(theirs.sum_ms, own[2]))
            rows.append(
                [f"the best of both, {precision.name} here", f"{images:,}", *there, name, *map(format_ms, own), gain]
            )
    return rows


def _whole_ms(bench: Bench, name: str, images: int, precision: str = "fp32") -> float | None:
    """The whole program's time with that variant for all convolutions."""
    batch = next((batch for batch in bench.document["batches"] if batch["images"] == images), None)
    rows = batch["whole_program"] if batch else []
    return next((row["ms"] for row in rows if (row["conv"], row["precision"]) == (name, precision)), None)
