"""The tables of docs/kernels.md that show what ``bench`` measured."""

import textwrap
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from app.bench.ladder.results import CPU
from app.bench.ladder.table import short_peak
from app.bench.old_reports import Row
from app.precision import BY_NAME, SHORT, SINGLE
from app.text import format_factor, format_ms
from docs.generate.figures import BENCH, PROFILE, RESOURCES, Bench, Figures, command_of

NOISE = 0.01  # bench's default


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Lay out a table whose first ``left`` columns are aligned left and the others right."""
    align = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate([*rows], head, tablefmt="pipe", colalign=align, disable_numparse=True)


def filled(text: str) -> str:
    """Wrap a paragraph as the documents' prose is wrapped."""
    return textwrap.fill(text, 119, break_on_hyphens=False)


def share(row: Row | None) -> str:
    """Write the larger share of a peak and which peak it is, such as ``54% mem``; empty if it is not known."""
    rates = row["rates"] if row else None
    if rates is None or rates["share"] is None:
        return ""
    return f"{rates['share']:{'.0%' if rates['share'] >= 0.1 else '.1%'}} {rates['limit'][:3]}"


def label(row: Row) -> str:
    """Write a row's step and name."""
    return row["name"] if row["step"] is None else f"{row['step']} {row['name']}"


def header(figures: Figures) -> str:
    """Write when and on what each network was measured, and the commands."""
    benches = figures.benches
    peak_names = list(dict.fromkeys(name for bench in benches.values() for name in bench.document["peaks"]["tflops"]))
    rows = []
    for name, bench in benches.items():
        card, peaks = bench.document["device"], bench.document["peaks"]
        rows.append(
            [f"`{name}`", bench.document["date"], card["name"], card["driver"] or "–", card["cuda"], card["cupy"]]
            + [f"{peaks['tflops'][peak]:.1f}" if peak in peaks["tflops"] else "" for peak in peak_names]
            + [f"{peaks['gbytes_per_s']:,.0f}"]
        )
    head = ["network", "measured", "card", "driver", "CUDA", "CuPy", *map(short_peak, peak_names), "copy GB/s"]
    peaks_are = f"{', '.join(map(short_peak, peak_names))}: the card's measured TFLOP/s (tf32, fp16: by `mma.sync`)."
    rules = list(dict.fromkeys(bench.document["settings"]["rule"] for bench in benches.values()))
    rule = f"Rule of every measurement: {rules[0]}."
    if len(rules) > 1:
        rule = f"Rule for `{next(iter(benches))}`: {rules[0]}. The other networks use the `--noise` shown below."
    commands = [*map(bench_command, benches.values()), *map(command_of, (PROFILE, RESOURCES))]
    return (
        f"{markdown(head, rows, 6)}\n\n{peaks_are}\n\n"
        f"CUDA events time the kernels. {rule} A row that a table lacks was not in its run.\n\n"
        "```console\n" + "\n".join([*commands, "python -m docs.generate --draw"]) + "\n```"
    )


def bench_command(bench: Bench) -> str:
    """Write the command that measured it, by the settings in its document."""
    sizes = ",".join(str(batch["images"]) for batch in bench.document["batches"])
    settings = bench.document["settings"]
    noise, l2 = (settings.get(name, usual) for name, usual in (("noise", NOISE), ("l2", "cold")))
    options = f" --batches {sizes}" + (f" --noise {noise:g}" if noise != NOISE else "") + f" --l2 {l2}" * (l2 != "cold")
    return f"python main.py bench --network {bench.network}{options} --json docs/benchmarks/{BENCH[bench.network]}"


def ladder(network: str, figures: Figures) -> str:
    """Write a row for every way to compute the network's convolutions, step by step, and why some did not run."""
    bench = figures.bench(network)
    ops = [table["item"] for table in bench.ops]
    rows, reasons = [], []
    for name, dtype, first in _rows(bench):
        found = [bench.row(op, name, dtype) for op in ops]
        for table in bench.ops:
            failed = next((row for row in table["rows"] if (row["name"], row["dtype"]) == (name, dtype)), None)
            if failed is not None and not failed["ms"]:
                reasons.append(f"{label(first)} in {SHORT[dtype]} on {table['item']}: {failed['reason']}.")
        if not any(found):
            continue
        total = bench.total(name, dtype) or {}
        ms = total.get("sum_ms")
        rate = sum(row["rates"]["tflops"] * row["ms"] for row in found if row) / ms if ms else None
        rows.append(
            [label(first), SHORT[dtype], *(format_ms(row["ms"] if row else None) for row in found), format_ms(ms)]
            + ["" if rate is None else f"{rate:.2f}", *map(share, found)]
            + [format_factor(total.get(against)) for against in ("library_ratio", "previous_ratio")]
        )
    head = ["variant", "type", *(f"{op} ms" for op in ops), "sum ms", "TFLOP/s", *(f"{op} % of peak" for op in ops)]
    lines = f"`{bench.network}`, {bench.images:,} images:\n\n" + markdown([*head, "× library", "× before"], rows, 2)
    return "\n\n".join([lines, *([" ".join(reasons)] if reasons else [])])


def _rows(bench: Bench) -> list[tuple[str, str, Row]]:
    """(name, type, one of its rows) of all rows of the convolutions, type after type."""
    found: dict[tuple[str, str], Row] = {}
    for table in bench.ops:
        for row in table["rows"]:
            found.setdefault((row["name"], row["dtype"]), row)
    return [(name, dtype, row) for (name, dtype), row in found.items()]


def batches(network: str, figures: Figures) -> str:
    """Write the sums of the op times by batch size."""
    bench = figures.bench(network)
    sizes = [batch["images"] for batch in bench.document["batches"]]
    rows = []
    for name, dtype, row in _rows(bench):
        sums = [bench.sum_ms(name, dtype, size) for size in sizes]
        if any(sums) and row["kind"] != CPU:
            rows.append([label(row), SHORT[dtype], *map(format_ms, sums)])
    return f"`{bench.network}`, ms:\n\n" + markdown(["variant", "type", *(f"{size:,}" for size in sizes)], rows, 2)


def single_layers(figures: Figures, operation: str) -> list[tuple[Bench, Row]]:
    """Return every network's tables of single layers of that operation."""
    return [
        (bench, table)
        for bench in figures.benches.values()
        for table in bench.document["tables"]
        if table["operation"] == operation and "+" not in table["item"]
    ]


def by_layer(operation: str, figures: Figures) -> str:
    """Write the times of every single layer of one operation: a row for each variant and type."""
    columns = single_layers(figures, operation)
    names: dict[tuple[str, str], Row] = {}
    for _, table in columns:
        for row in table["rows"]:
            if row["ms"]:
                names.setdefault((row["name"], row["dtype"]), row)
    order = list(SHORT)
    rows = [
        [label(row), SHORT[dtype], *(format_ms(bench.ms(table["item"], name, dtype)) for bench, table in columns)]
        for (name, dtype), row in sorted(names.items(), key=lambda pair: order.index(pair[0][1]))
    ]
    head = ["variant", "type", *(f"{bench.network} {table['item']}" for bench, table in columns)]
    return f"ms for {_images(figures)} images:\n\n" + markdown(head, rows, 2)


def _images(figures: Figures) -> str:
    return " or ".join(sorted({f"{bench.images:,}" for bench in figures.benches.values()}))


def fused(figures: Figures) -> str:
    """Write each fused chain's fastest kernel beside the fastest kernels of its single layers."""
    rows = []
    for bench in figures.benches.values():
        for item in (item for item in bench.tables if "+" in item):
            for dtype in (precision.dtype for precision in SINGLE):
                whole = bench.best(item, dtype)
                found = [bench.best(part, dtype) or bench.best(part, "float32") for part in item.split("+")]
                parts = [part for part in found if part]
                if whole is None or len(parts) < len(found):
                    continue
                separate = sum(part["ms"] for part in parts)
                one_by_one = ", ".join(part["name"] for part in parts)
                times = (format_ms(whole["ms"]), format_ms(separate), format_factor(separate / whole["ms"]))
                rows.append([f"`{bench.network}`", item, SHORT[dtype], whole["name"], one_by_one, *times])
    head = ["network", "layers", "type", "fused in", "one by one", "fused ms", "separate ms", "× as fast"]
    return markdown(head, rows, 5)


def whole_program(figures: Figures) -> str:
    """Write the end-to-end time by the variant of all convolutions, and which variants gain by running in chunks."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    best = []
    below: dict[str, list[str]] = {}
    for name, bench in figures.benches.items():
        timed = [row for row in bench.document["whole_program"] if row["ms"]]
        fastest = min(timed, key=lambda row: row["ms"])
        best.append(f"{fastest['conv']} in {fastest['precision']} for `{name}`")
        for row in bench.document["whole_program"]:
            cells.setdefault((row["conv"], row["precision"]), {})[name] = format_ms(row["ms"]) or "–"
        for row in timed:
            alone = bench.sum_ms(row["conv"], BY_NAME[row["precision"]].dtype)
            if alone and row["ms"] < alone:
                below.setdefault(f"{row['conv']} in {row['precision']}", []).append(f"`{name}`")
    rows = [[*key, *(found.get(network, "") for network in figures.benches)] for key, found in cells.items()]
    head = ["convolutions", "as", *(f"{name} ms" for name in figures.benches)]
    where = "; ".join(f"{variant} ({', '.join(networks)})" for variant, networks in below.items())
    less = (
        f"These variants take less than their op times: {where}."
        if below
        else "No variant takes less than its op times."
    )
    notes = filled(f"The fastest choice is {', '.join(best)}. {less}")
    return f"{_images(figures)} images:\n\n{markdown(head, rows, 2)}\n\n{notes}"
