"""Draw the charts of a bench document: time bars and roofline of the convolutions, and time by batch size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.base.precision import BY_DTYPE
from app.drawing import journey, lines, roofline, svg
from app.kernels.registry import variants
from app.lab.bench.results import CPU

Document = Mapping[str, Any]


def draw_charts(document: Document, folder: Path) -> list[Path]:
    """Write the charts for which the document has figures, as SVG files into the folder; return their paths."""
    ops = [table["item"] for table in document["tables"] if table["is_op"]]
    found = {}
    for item in (None, *ops) if len(ops) > 1 else ops:
        if journey.bars_from_bench(document, item):
            found["ladder" if len(ops) == 1 or item is None else f"ladder_{item}"] = ladder_chart(document, item)
    for item in ops:
        if roofline.roofline_points(document, item):
            found["roofline" if len(ops) == 1 else f"roofline_{item}"] = roofline_chart(document, item)
    if document["totals"] and len(document["batches"]) > 1:
        found["batch_sizes"] = batch_size_chart(document)
    return [svg.save_chart(chart, folder / f"{name}.svg") for name, chart in found.items()]


def ladder_chart(document: Document, item: str | None = None) -> str:
    """Return an SVG of each kernel's time for one convolution, or for None of the sum over all convolutions."""
    since = {row.name: row.since for row in variants("conv")}
    what = item or "sum of the convolutions"
    return journey.draw_ladder_chart(
        journey.bars_from_bench(document, item, since=since), _chart_title(document, what), "ladder"
    )


def roofline_chart(document: Document, item: str) -> str:
    """Return an SVG of the roofline of one convolution: its kernels' rates below the measured peaks."""
    return roofline.draw_roofline(
        roofline.roofline_points(document, item), document["peaks"], _chart_title(document, item)
    )


def batch_size_chart(document: Document) -> str:
    """Return an SVG of the summed time of the convolutions by batch size, one line for each kernel."""
    found: dict[tuple[str, str, int | None], list[tuple[float, float]]] = {}
    for batch in document["batches"]:
        for row in batch["totals"]:
            if row["sum_ms"] is not None and row["kind"] != CPU:
                key = row["name"], row["dtype"], row["step"]
                found.setdefault(key, []).append((batch["images"], row["sum_ms"]))
    drawn = [lines.Line(journey.step_label(*key), BY_DTYPE[key[1]].colour, points) for key, points in found.items()]
    panel = lines.Panel("sum of the op times, ms", drawn)
    title = f"Time against batch size: {document['subject']}, {document['device']['name']}"
    return lines.draw_line_chart(title, "images", [panel], logarithmic=True, name="batch-sizes")


def _chart_title(document: Document, what: str) -> str:
    return f"{document['subject']}, {what}: {document['images']:,} images, {document['device']['name']}"
