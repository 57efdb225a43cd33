"""Draw a bench document: ladder, roofline, time against batch size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.ladder.results import CPU, DEBUG
from app.bench.ladder.table import kernel_name, short_peak
from app.figures import figure_of, save
from app.precision import BY_DTYPE, SHORT

MARKERS = "osD^v<>PX*h"


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ladder.png, roofline.png and, with several batch sizes, batch_sizes.png; return their paths."""
    written = []
    if ladder_bars(document):
        written.append(save(ladder(document), folder / "ladder.png"))
    if roofline_points(document):
        written.append(save(roofline(document), folder / "roofline.png"))
    if document["totals"] and len(document["batches"]) > 1:
        written.append(save(batch_sizes(document), folder / "batch_sizes.png"))
    return written


def label(row: Mapping[str, Any]) -> str:
    """Return a row's name for a picture, with its type unless that is fp32."""
    return kernel_name(row) + ("" if row["dtype"] == "float32" else f" {SHORT[row['dtype']]}")


def _timed(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Yield (op, row) of every timed row of the convolutions alone."""
    tables = (table for table in document["tables"] if table["is_op"])
    return [(table["item"], row) for table in tables for row in table["rows"] if row["ms"] is not None]


def ladder_bars(document: Mapping[str, Any]) -> list[tuple[str, str, str, float]]:
    """Return (op, label, type, ms) of every timed row of the convolutions alone."""
    return [(op, label(row), row["dtype"], row["ms"]) for op, row in _timed(document)]


def roofline_points(document: Mapping[str, Any]) -> list[tuple[str, str, str, float, float]]:
    """Return (op, label, type, FLOPs/byte, TFLOP/s) of every row timed on the card except the debug row."""
    return [
        (op, label(row), row["dtype"], row["rates"]["intensity"], row["rates"]["tflops"])
        for op, row in _timed(document)
        if row["kind"] not in (CPU, DEBUG)
    ]


def _title(document: Mapping[str, Any], what: str) -> str:
    return f"{what}: {document['subject']}\n{document['device']['name']}"


def ladder(document: Mapping[str, Any]) -> Any:
    """Draw the op times as bars, one plot for each convolution."""
    bars = ladder_bars(document)
    ops = list(dict.fromkeys(bar[0] for bar in bars))
    most = max(sum(bar[0] == op for bar in bars) for op in ops)
    figure, axes = figure_of(6.5 * len(ops), 1.5 + 0.27 * most, len(ops))
    for axis, op in zip(axes, ops, strict=True):
        own = [bar for bar in bars if bar[0] == op]
        places = range(len(own))
        axis.barh(places, [bar[3] for bar in own], color=[BY_DTYPE[bar[2]].colour for bar in own])
        axis.set_yticks(places, [bar[1] for bar in own])
        axis.invert_yaxis()
        axis.set(xscale="log", xlabel="ms", title=op)
        axis.margins(x=0.15)
        for place, bar in zip(places, own, strict=True):
            axis.text(bar[3], place, f" {bar[3]:,.0f}" if bar[3] >= 100 else f" {bar[3]:.3g}", va="center", fontsize=8)
    figure.suptitle(_title(document, f"Op times, {document['images']:,} images"))
    return figure


def roofline(document: Mapping[str, Any]) -> Any:
    """Draw TFLOP/s over FLOPs per byte as points, below the measured peaks."""
    points = roofline_points(document)
    peaks = document["peaks"]
    ops = list(dict.fromkeys(point[0] for point in points))
    figure, axes = figure_of(7.5 * len(ops), 8, len(ops))
    for axis, op in zip(axes, ops, strict=True):
        own = [point for point in points if point[0] == op]
        ridges = [peak * 1e3 / peaks["gbytes_per_s"] for peak in peaks["tflops"].values()]  # FLOPs a byte
        low = min(point[3] for point in own) / 4
        high = max(*(2 * ridge for ridge in ridges), *(4 * point[3] for point in own))
        for (name, peak), ridge in zip(peaks["tflops"].items(), ridges, strict=True):
            xs = sorted({low, max(ridge, low), high})
            roof = [min(peak, x * peaks["gbytes_per_s"] / 1e3) for x in xs]
            dtype, *family = name.split()
            style, label = "--" if family else "-", f"measured peak {short_peak(name)}: {peak:.0f} TFLOP/s"
            axis.plot(xs, roof, style, color=BY_DTYPE[dtype].colour, label=label)
        for index, (_, name, dtype, intensity, rate) in enumerate(own):
            marker = MARKERS[index % len(MARKERS)]
            axis.plot(intensity, rate, marker, color=BY_DTYPE[dtype].colour, label=name)
        axis.set(title=f"{op}; copy {peaks['gbytes_per_s']:,.0f} GB/s", xscale="log", yscale="log")
        axis.set(xlabel="FLOPs a byte (each array moved once)", ylabel="TFLOP/s")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)  # covers no point
    figure.suptitle(_title(document, f"Roofline, {document['images']:,} images"))
    return figure


def batch_sizes(document: Mapping[str, Any]) -> Any:
    """Draw the sum of the op times over the number of images as lines."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for batch in document["batches"]:
        for row in batch["totals"]:
            if row["sum_ms"] is not None and row["kind"] != CPU:
                lines.setdefault((label(row), row["dtype"]), []).append((batch["images"], row["sum_ms"]))
    figure, (axis,) = figure_of(9, 6.5)
    for index, ((name, dtype), points) in enumerate(lines.items()):
        style = f"{MARKERS[index % len(MARKERS)]}-"
        axis.plot(*zip(*points, strict=True), style, color=BY_DTYPE[dtype].colour, alpha=0.7, label=name)
    axis.set(xscale="log", yscale="log", xlabel="images", ylabel="sum of the op times, ms")
    axis.grid(True, which="major", alpha=0.3)
    figure.legend(fontsize=7, loc="outside right upper")
    axis.set_title(_title(document, "Time against batch size"), fontsize=10)
    return figure
