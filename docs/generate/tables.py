"""Write the tables of docs/kernels.md: results of ``bench`` and ``profile``, and the kernels' resources."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import product

from tabulate import tabulate

from app.base.precision import BY_NAME, SHORT, SINGLE
from app.lab.bench.results import CPU
from app.lab.bench.table import short_peak_name
from app.lab.document import Row, fastest_row, first_row
from app.lab.profile.text import call_cells, kernel_cells
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import BENCH, PROFILE, RESOURCES, Bench, Figures, command_for_file

NOISE = 0.01  # default of bench --noise


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; its first ``left`` columns are aligned left, the others right."""
    align = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate([*rows], head, tablefmt="pipe", colalign=align, disable_numparse=True)


def table_from_lines(head: str, rows: Iterable[str], left: int = 1) -> str:
    """Return a Markdown table, given its head and rows as strings with `` | `` between cells."""
    return markdown_table(head.split(" | "), (row.split(" | ") for row in rows), left)


def wrap_paragraph(text: str) -> str:
    """Return the text as a paragraph of lines of at most 119 characters."""
    return textwrap.fill(text, 119, break_on_hyphens=False)


def yes_or_no(fulfilled: bool) -> str:
    """Return a table's cell that says whether a requirement is fulfilled: ``yes``, or a bold ``no``."""
    return "yes" if fulfilled else "**no**"


def format_share(row: Row, peak: str = "{:.3}") -> str:
    """Return a row's share of the peak that limits it, such as ``54% mem``, or "". peak: format of the peak's name."""
    rates = row.get("rates")
    if not rates or rates["share"] is None:
        return ""
    return f"{rates['share']:{'.0%' if rates['share'] >= 0.1 else '.1%'}} {peak.format(rates['limit'])}"


def row_label(row: Row) -> str:
    """Return a bench row's step and name, such as ``2 direct``; a dash for an empty row."""
    return " ".join(str(row[key]) for key in ("step", "name") if row.get(key) is not None) or "–"


def measurement_header(figures: Figures) -> str:
    """Return a table of each network's measurement (date, card, peaks), and the commands that measured."""
    documents = {name: bench.document for name, bench in figures.benches.items()}
    peak_names = list(dict.fromkeys(name for document in documents.values() for name in document["peaks"]["tflops"]))
    rows = []
    for name, document in documents.items():
        card, peaks = document["device"], document["peaks"]
        rows.append(
            [f"`{name}`", document["date"], card["name"], card["driver"] or "–", card["cuda"], card["cupy"]]
            + [f"{peaks['tflops'][peak]:.1f}" if peak in peaks["tflops"] else "" for peak in peak_names]
            + [f"{peaks['gbytes_per_s']:,.0f}"]
        )
    head = ["network", "measured", "card", "driver", "CUDA", "CuPy", *map(short_peak_name, peak_names), "copy GB/s"]
    peaks_are = (
        f"The columns {', '.join(map(short_peak_name, peak_names))} give the card's measured peak rates in TFLOP/s. "
        "The rates of tf32 and fp16 are those of `mma.sync`."
    )
    rules = list(dict.fromkeys(document["settings"]["rule"] for document in documents.values()))
    rule = f"Each measurement makes {rules[0]}."
    if len(rules) > 1:
        rule = f"Each measurement of `{next(iter(documents))}` makes {rules[0]}. "
        rule += "For the other networks, `--noise` in the commands below sets another limit."
    commands = [*map(bench_command, figures.benches.values()), *map(command_for_file, (PROFILE, RESOURCES))]
    return (
        f"{markdown_table(head, rows, 6)}\n\n{peaks_are}\n\n"
        f"CUDA events time the kernels. {rule} A kernel without a row in a table was not measured in that run.\n\n"
        "```console\n" + "\n".join([*commands, "python -m docs.generate --draw"]) + "\n```"
    )


def bench_command(bench: Bench) -> str:
    """Return the command that wrote a bench document, made from the settings in it."""
    sizes = ",".join(str(batch["images"]) for batch in bench.document["batches"])
    noise, l2 = (bench.document["settings"][name] for name in ("noise", "l2"))
    options = f" --batches {sizes}" + (f" --noise {noise:g}" if noise != NOISE else "") + f" --l2 {l2}" * (l2 != "cold")
    path = f"docs/benchmarks/{BENCH[bench.network]}"
    return f"python main.py bench --network {bench.network}{options} --overwrite --json {path}"


def rows_by_name(tables: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """Return (kernel, number format) → the first of its rows in the tables."""
    found: dict[tuple[str, str], Row] = {}
    for row in (row for table in tables for row in table["rows"]):
        found.setdefault((row["name"], row["dtype"]), row)
    return found


def ladder_table(network: str, figures: Figures) -> str:
    """Return a table of the times of every kernel and library on a network's convolutions, and why some did not run."""
    bench = figures.bench(network)
    ops = [table["item"] for table in bench.convolution_tables]
    rows, reasons = [], []
    for (name, dtype), any_row in rows_by_name(bench.convolution_tables).items():
        for table in bench.convolution_tables:
            row = first_row(table["rows"], name=name, dtype=dtype)
            if row and not row["ms"]:
                reasons.append(f"{row_label(any_row)} in {SHORT[dtype]} on {table['item']}: {row['reason']}.")
        found = [bench.row(op, name, dtype) for op in ops]
        if not any(found):
            continue
        total = bench.total(name, dtype)
        ms = total.get("sum_ms")
        rate = sum(row["rates"]["tflops"] * row["ms"] for row in found if row) / ms if ms else None
        rows.append(
            [row_label(any_row), SHORT[dtype], *(format_ms(row.get("ms")) for row in found), format_ms(ms)]
            + ["" if rate is None else f"{rate:.2f}", *map(format_share, found)]
            + [format_factor(total.get(against)) for against in ("library_ratio", "previous_ratio")]
        )
    head = ["variant", "type", *(f"{op} ms" for op in ops), "sum ms", "TFLOP/s", *(f"{op} % of peak" for op in ops)]
    shown = markdown_table([*head, "× library", "× before"], rows, 2)
    notes = " ".join(reasons and ["Kernels that cannot compute a layer, and why:", *reasons])
    return "\n\n".join(part for part in (f"`{network}`, {bench.document['images']:,} images:", shown, notes) if part)


def batch_sizes_table(network: str, figures: Figures) -> str:
    """Return a table of the summed times of a network's convolutions: a column for each batch size."""
    bench = figures.bench(network)
    sizes = [batch["images"] for batch in bench.document["batches"]]
    rows = []
    for (name, dtype), row in rows_by_name(bench.convolution_tables).items():
        sums = [bench.total(name, dtype, size).get("sum_ms") for size in sizes]
        if any(sums) and row["kind"] != CPU:
            rows.append([row_label(row), SHORT[dtype], *map(format_ms, sums)])
    return f"`{network}`, ms:\n\n" + markdown_table(["variant", "type", *(f"{size:,}" for size in sizes)], rows, 2)


def layer_times_table(operation: str, figures: Figures) -> str:
    """Return a table of times on the unfused layers of an operation: a row for each kernel and number format."""
    columns = [
        (bench, {**table, "rows": [row for row in table["rows"] if row["ms"]]})
        for bench in figures.benches.values()
        for table in bench.document["tables"]
        if table["operation"] == operation and "+" not in table["item"]
    ]
    names = rows_by_name(table for _, table in columns)
    order = list(SHORT)
    rows = [
        [row_label(row), SHORT[dtype], *(format_ms(bench.ms(name, dtype, table["item"])) for bench, table in columns)]
        for (name, dtype), row in sorted(names.items(), key=lambda pair: order.index(pair[0][1]))
    ]
    head = ["variant", "type", *(f"{bench.network} {table['item']}" for bench, table in columns)]
    return f"Times in ms for {_image_counts_text(figures)} images:\n\n" + markdown_table(head, rows, 2)


def _image_counts_text(figures: Figures) -> str:
    return " or ".join(sorted({f"{bench.document['images']:,}" for bench in figures.benches.values()}))


def fused_layers_table(figures: Figures) -> str:
    """Return a table of the fastest fused kernels beside the fastest kernels of the single layers."""
    rows = []
    for bench in figures.benches.values():
        chains = [item for item in bench.tables if "+" in item]
        for item, dtype in product(chains, [precision.dtype for precision in SINGLE]):
            whole = bench.fastest_row_of_item(item, dtype)
            parts = [
                bench.fastest_row_of_item(part, dtype) or bench.fastest_row_of_item(part, "float32")
                for part in item.split("+")
            ]
            if whole and all(parts):
                separate = sum(part["ms"] for part in parts)
                rows.append(
                    f"`{bench.network}` | {item} | {SHORT[dtype]} | {whole['name']} | "
                    f"{', '.join(part['name'] for part in parts)} | {format_ms(whole['ms'])} | {format_ms(separate)} | "
                    f"{format_factor(separate / whole['ms'])}"
                )
    head = "network | layers | type | fused kernel | single kernels | fused ms | separate ms | × as fast"
    return table_from_lines(head, rows, 5)


def end_to_end_table(figures: Figures) -> str:
    """Return a table of end-to-end times by convolution kernel, and which kernels take less than their layers alone."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    best = []
    below: dict[str, list[str]] = {}
    for name, bench in figures.benches.items():
        fastest = fastest_row(bench.document["whole_program"])
        best.append(f"{fastest['conv']} in {fastest['precision']} for `{name}`")
        for row in bench.document["whole_program"]:
            cells.setdefault((row["conv"], row["precision"]), {})[name] = format_ms(row["ms"]) or "–"
            alone = bench.total(row["conv"], BY_NAME[row["precision"]].dtype).get("sum_ms")
            if row["ms"] and alone and row["ms"] < alone:
                below.setdefault(f"{row['conv']} in {row['precision']}", []).append(f"`{name}`")
    rows = [[*key, *(found.get(network, "") for network in figures.benches)] for key, found in cells.items()]
    head = ["convolutions", "as", *(f"{name} ms" for name in figures.benches)]
    where = "; ".join(f"{variant} ({', '.join(networks)})" for variant, networks in below.items())
    less = f"With these kernels, the whole program takes less time than the sum of their op times: {where}."
    if not below:
        less = "With no kernel does the whole program take less time than the sum of its op times."
    notes = wrap_paragraph(f"The fastest choices are {', '.join(best)}. {less}")
    return f"Times for {_image_counts_text(figures)} images:\n\n{markdown_table(head, rows, 2)}\n\n{notes}"


def profile_tables(figures: Figures) -> str:
    """Return tables of a profile: times of kernels, copies and API calls, and hardware counters or why none exist."""
    document = figures[PROFILE]
    settings = ", ".join(f"{name} {value}" for name, value in document["settings"].items())
    spans = ([layer or "–", *cells[:7]] for layer, *cells in map(kernel_cells, document["rows"]))
    calls = ([f"`{name}`", *cells] for name, *cells in map(call_cells, document["api"]))
    note = document["counters_note"] or ""
    parts = [
        f"`{document['network']}` in {document['precision']}, {document['batch']:,} images, "
        f"{document['device']['name']}; {settings}:",
        markdown_table(["layer", "kernel or copy", "calls", "total ms", "share", "min", "average", "max"], spans, 2),
        markdown_table(["call", "calls", "total ms", "share of the host's time", "average µs", "max µs"], calls),
        _counters_table(document["counters"]) if document["counters"] else "",
        f"{note[:1].upper()}{note[1:]}." if note else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _counters_table(rows: Sequence[Row]) -> str:
    names = ("load", "store", "warps", "occupancy")
    units = list(dict.fromkeys(unit for row in rows for unit in row["throughput"]))
    counted = []
    for row in rows:
        values = [*map(row.get, names), *map(row["throughput"].get, units)]
        shown = ["–" if value is None else f"{value:.1f}" for value in values]
        counted.append([row["layer"], row["name"], *shown, row["bound"]])
    return markdown_table(["layer", "kernel", *(f"{name} %" for name in names), *units, "bound"], counted, 2)


def resources_table(figures: Figures) -> str:
    """Return a table of the resources of each compiled function: registers, shared memory, spills, occupancy."""
    head = "operation | variant | layer | function | threads | registers | shared bytes | constant bytes"
    rows = (
        f"{row['operation']} | {row['name']} | {row['layer']} | `{row['entry']}` | {row['threads']} | "
        f"{row['registers']} | {row['static_shared'] + row['dynamic_shared']:,} | {row['constant']:,} | "
        f"{row['spill_stores']} / {row['spill_loads']} | {row['blocks']} | {row['occupancy']:.0%}"
        for row in figures[RESOURCES]["resources"]
        if "registers" in row
    )
    made = table_from_lines(f"{head} | spill stores / loads | blocks an SM | occupancy", rows, 4)
    return f"Resources as compiled for {figures[RESOURCES]['arch']}:\n\n{made}"
