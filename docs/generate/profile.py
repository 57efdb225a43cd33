"""The tables of docs/kernels.md that show what ``profile`` measured and what kernels compile to."""

from collections.abc import Sequence

from app.bench.old_reports import Row
from app.text import format_ms
from docs.generate.figures import PROFILE, RESOURCES, Figures
from docs.generate.tables import markdown


def profile(figures: Figures) -> str:
    """Write the times of kernels, copies and API calls, and the counters or why there are none."""
    document = figures[PROFILE]
    settings = ", ".join(f"{name} {value}" for name, value in document["settings"].items())
    spans = [
        [row["layer"] or "–", row["name"], f"{row['calls']:.0f}", format_ms(row["total_ms"]), f"{row['share']:.1%}"]
        + [format_ms(row[name]) for name in ("min_ms", "average_ms", "max_ms")]
        for row in document["rows"]
    ]
    calls = [
        [
            *(f"`{row['name']}`", f"{row['calls']:.0f}", format_ms(row["total_ms"]), f"{row['share']:.1%}"),
            *(f"{row['average_us']:.2f}", f"{row['max_us']:.1f}"),
        ]
        for row in document["api"]
    ]
    parts = [
        f"`{document['network']}` in {document['precision']}, {document['batch']:,} images, "
        f"{document['device']['name']}; {settings}:",
        markdown(["layer", "kernel or copy", "calls", "total ms", "share", "min", "average", "max"], spans, 2),
        markdown(["call", "calls", "total ms", "share of the host's time", "average µs", "max µs"], calls),
    ]
    if document["counters"]:
        parts.append(_counters(document["counters"]))
    if document["counters_note"]:
        parts.append(f"{document['counters_note'][:1].upper()}{document['counters_note'][1:]}.")
    return "\n\n".join(parts)


def _counters(rows: Sequence[Row]) -> str:
    names = ("load", "store", "warps", "occupancy")
    counted = [
        [row["layer"], row["name"]]
        + ["–" if value is None else f"{value:.1f}" for value in (*map(row.get, names), *row["throughput"].values())]
        + [row["bound"]]
        for row in rows
    ]
    return markdown(["layer", "kernel", *(f"{name} %" for name in names), *rows[0]["throughput"], "bound"], counted, 2)


def resources(figures: Figures) -> str:
    """Write what each function compiles to."""
    rows = [
        [
            *(row["operation"], row["name"], row["layer"], f"`{row['entry']}`"),
            *map(str, (row["threads"], row["registers"])),
            *(f"{size:,}" for size in (row["static_shared"] + row["dynamic_shared"], row["constant"])),
            *(f"{row['spill_stores']} / {row['spill_loads']}", str(row["blocks"]), f"{row['occupancy']:.0%}"),
        ]
        for row in figures[RESOURCES]["resources"]
        if "registers" in row
    ]
    head = ["operation", "variant", "layer", "function", "threads", "registers", "shared bytes", "constant bytes"]
    head += ["spill stores / loads", "blocks an SM", "occupancy"]
    return f"Compiled for {figures[RESOURCES]['arch']}:\n\n" + markdown(head, rows, 4)
