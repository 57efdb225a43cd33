"""Format the profile document as text."""

from app.lab.profile.counters import THROUGHPUTS
from app.records.profile import Call, Counter, Profile, Row, Timeline
from app.terminal.text import INDENT, WIDTH, Column, fields, format_ms, paragraph, table

# Columns of a kernel or copy; narrow terminals leave out those with the highest rank first.
FIGURES = {"calls": 0, "total ms": 0, "share": 0, "min ms": 2, "average": 0, "max": 2, "MB": 1, "GB/s": 1}
LAYER, KERNEL, COPY, CALL, BOUND = (
    Column(head, left=True) for head in ("layer", "kernel", "kernel or copy", "call", "bound")
)
KERNELS = (LAYER, COPY, *(Column(head, optional=rank) for head, rank in FIGURES.items()))
CALLS = (CALL, *map(Column, ("calls", "total ms", "share", "average us", "max us")))
SHARES = {"load": 2, "store": 2, "warps": 2, "occupancy": 0}  # columns of a counter's row, in percent
COUNTERS = (
    *(LAYER, KERNEL, *(Column(head, optional=rank) for head, rank in SHARES.items())),
    *(Column(unit, optional=unit.startswith("L")) for unit in THROUGHPUTS),
    BOUND,
)


def as_text(document: Profile, width: int = WIDTH) -> str:
    """Return the document as tables and paragraphs of at most ``width`` columns."""
    settings, times, overlap = document["settings"], document["end_to_end_ms"], document["overlap"]
    device, copies = document["device"], overlap["copies_ms"]
    shared = f"{settings['streams']} streams share the card, so times overlap: --streams 1 gives each kernel its own"
    notes = [
        f"End to end {format_ms(times['plain'])} ms; with API calls counted {format_ms(times['counted'])} ms, with two "
        f"events round every kernel and copy {format_ms(times['events'])} ms: measuring costs that much",
        f"Timeline of the last run: {document['trace']} (open it at ui.perfetto.dev or chrome://tracing)"
        if document["trace"] is not None
        else None,
        _stamps_note(document.get("timeline")),
        document["counters_note"],
    ]
    lines = [
        *paragraph(
            f"{document['network']} in {document['precision']} on {document['batch']:,} images ({document['images']})",
            width,
        ),
        *fields(
            [
                ("device", f"{device['name']} ({device['architecture']})"),
                ("settings", ", ".join(f"{name} {value}" for name, value in settings.items())),
            ],
            width,
        ),
        "",
        *paragraph("Kernels and copies (events on their streams; calls, total and MB are per run)", width),
        *table(KERNELS, map(kernel_cells, document["rows"]), width),
        *paragraph(
            f"some kernel was running for {format_ms(overlap['kernels_ms'])} ms, a copy to or from the host for "
            f"{format_ms(copies)} ms, {overlap['both_ms'] / copies if copies else 0:.0%} of it under kernels",
            width,
            INDENT,
        ),
        *(paragraph(shared, width, INDENT) if settings["streams"] > 1 else []),
        "",
        *paragraph(
            "Host API calls (calls and total per run; share of the host's time from start to readable labels)", width
        ),
        *table(CALLS, map(call_cells, document["api"]), width),
        "",
    ]
    lines += [line for note in notes if note is not None for line in paragraph(note, width)]
    if document["counters"]:
        head = (
            "Counters of the first chunk (Nsight Compute, cold caches; %): global load and store efficiency, warp "
            "execution efficiency, occupancy, throughput of each unit"
        )
        lines += ["", *paragraph(head, width), *table(COUNTERS, map(_counter_cells, document["counters"]), width)]
    return "\n".join(lines)


def _stamps_note(timeline: Timeline | None) -> str | None:
    if timeline is None:
        return None
    times = timeline["end_to_end_ms"]
    stamped, plain = format_ms(times["stamped"]), format_ms(times["plain"])
    return (
        f"Warpgroups: {timeline['kernel']} with stamps of the clock takes {stamped} ms end to end instead of "
        f"{plain} ms; the page of --timeline shows multiprocessor {timeline['multiprocessor']}"
    )


def kernel_cells(row: Row) -> list[str]:
    """Return the table cells for a kernel or copy, in the order of the columns ``KERNELS``."""
    copied = [f"{row['bytes'] / 1e6:.3f}", f"{row['gbytes_per_s'] or 0:.1f}"] if row["bytes"] else ["", ""]
    times = [format_ms(ms) for ms in (row["min_ms"], row["average_ms"], row["max_ms"])]
    calls = [f"{row['calls']:.0f}", format_ms(row["total_ms"]), f"{row['share']:.1%}"]
    return [row["layer"], row["name"], *calls, *times, *copied]


def call_cells(row: Call) -> list[str]:
    """Return the table cells for an API call, in the order of the columns ``CALLS``."""
    times = [format_ms(row["total_ms"]), f"{row['share']:.1%}", f"{row['average_us']:.2f}", f"{row['max_us']:.1f}"]
    return [row["name"], f"{row['calls']:.0f}", *times]


def _counter_cells(row: Counter) -> list[str]:
    values = [row["load"], row["store"], row["warps"], row["occupancy"], *row["throughput"].values()]
    return [row["layer"], row["name"], *("-" if value is None else f"{value:.1f}" for value in values), row["bound"]]
