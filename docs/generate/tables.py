"""The tables of docs/kernels.md that show what ``bench`` measured. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from app.bench.ladder.results import CPU
from app.bench.ladder.table import short_peak
from app.bench.stored_figures import BENCH, FILES, PROFILE, RESOURCES, Bench, Row
from app.precision import BY_NAME, SHORT, SINGLE
from app.text import format_factor, format_ms

Benches = Mapping[str, Bench]
NOISE = 0.01  # bench's default
WIDTH = 119  # of prose


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table; the first ``left`` columns are aligned left, the others right."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def share(row: Row | None) -> str:
    """Share of the peak that is nearer, and which it is."""
    rates = row["rates"] if row else None
    if rates is None or rates["share"] is None:
        return ""
    return f"{rates['share']:{'.0%' if rates['share'] >= 0.1 else '.1%'}} {rates['limit'][:3]}"


def label(row: Row) -> str:
    """Step and name."""
    return row["name"] if row["step"] is None else f"{row['step']} {row['name']}"


def header(benches: Benches) -> str:
    """When and on what each network was measured, and the commands."""
    peak_names = list(dict.fromkeys(name for bench in benches.values() for name in bench.document["peaks"]["tflops"]))
    head = ["network", "measured", "card", "driver", "CUDA", "CuPy", *map(short_peak, peak_names), "copy GB/s"]
    rows = []
    for name, bench in benches.items():
        card, peaks = bench.document["device"], bench.document["peaks"]
        peak = [f"{peaks['tflops'][name]:.1f}" if name in peaks["tflops"] else "" for name in peak_names]
        rows.append(
            [
                f"`{name}`",
                bench.document["date"],
                card["name"],
                str(card["driver"]),
                str(card["cuda"]),
                card["cupy"],
                *peak,
                f"{peaks['gbytes_per_s']:,.0f}",
            ]
        )
    rules = list(dict.fromkeys(bench.document["settings"]["rule"] for bench in benches.values()))
    whose = f" (`{next(iter(benches))}`; the others by the `--noise` shown below)" if len(rules) > 1 else ""
    commands = [bench_command(bench) for bench in benches.values()]
    commands += [FILES[name][1] for name in (PROFILE, RESOURCES)]
    peaks_are = f"{', '.join(map(short_peak, peak_names))}: the card's measured TFLOP/s (tf32, fp16: by `mma.sync`)."
    return (
        f"{markdown(head, rows, 6)}\n\n{peaks_are}\n\n"
        f"Times{whose}: CUDA events; {rules[0]}. Rows that a table lacks were not in its run.\n\n"
        "```console\n" + "\n".join([*commands, "python -m docs.generate --draw"]) + "\n```"
    )


def bench_command(bench: Bench) -> str:
    """The command that measured it, as far as its document tells."""
    sizes = ",".join(str(batch["images"]) for batch in bench.document["batches"])
    settings = bench.document["settings"]
    noise, l2 = (settings.get(name, usual) for name, usual in (("noise", NOISE), ("l2", "cold")))
    options = f" --batches {sizes}" + (f" --noise {noise:g}" if noise != NOISE else "") + f" --l2 {l2}" * (l2 != "cold")
    return f"python main.py bench --network {bench.network}{options} --json docs/benchmarks/{BENCH[bench.network]}"


def ladder(bench: Bench) -> str:
    """Every way to do the network's convolutions, in the order of the steps, and why some did not run."""
    ops = [table["item"] for table in bench.ops]
    head = ["variant", "type", *(f"{op} ms" for op in ops), "sum ms", "TFLOP/s", *(f"{op} % of peak" for op in ops)]
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
            [
                label(first),
                SHORT[dtype],
                *(format_ms(row["ms"] if row else None) for row in found),
                format_ms(ms),
                "" if rate is None else f"{rate:.2f}",
                *(share(row) for row in found),
                format_factor(total.get("library_ratio")),
                format_factor(total.get("previous_ratio")),
            ]
        )
    lines = f"`{bench.network}`, {bench.images:,} images:\n\n" + markdown([*head, "× library", "× before"], rows, 2)
    return "\n\n".join([lines, *([" ".join(reasons)] if reasons else [])])


def _rows(bench: Bench) -> list[tuple[str, str, Row]]:
    """(name, type, one of its rows) of all rows of the convolutions, type after type."""
    found: dict[tuple[str, str], Row] = {}
    for table in bench.ops:
        for row in table["rows"]:
            found.setdefault((row["name"], row["dtype"]), row)
    return [(name, dtype, row) for (name, dtype), row in found.items()]


def batches(bench: Bench) -> str:
    """Sums of the op times by batch size."""
    sizes = [batch["images"] for batch in bench.document["batches"]]
    rows = []
    for name, dtype, row in _rows(bench):
        sums = [bench.sum_ms(name, dtype, size) for size in sizes]
        if any(sums) and row["kind"] != CPU:
            rows.append([label(row), SHORT[dtype], *map(format_ms, sums)])
    return f"`{bench.network}`, ms:\n\n" + markdown(["variant", "type", *(f"{size:,}" for size in sizes)], rows, 2)


def by_layer(benches: Benches, operation: str) -> str:
    """ms of every layer of one operation, alone, over all networks: a row for each variant and type."""
    columns = [
        (bench, table)
        for bench in benches.values()
        for table in bench.document["tables"]
        if table["operation"] == operation and "+" not in table["item"]
    ]
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
    return f"ms for {_images(benches)} images:\n\n" + markdown(head, rows, 2)


def _images(benches: Benches) -> str:
    return " or ".join(sorted({f"{bench.images:,}" for bench in benches.values()}))


def fused(benches: Benches) -> str:
    """Every chain that a kernel fuses, by the fastest one, beside the fastest kernels of its layers one by one."""
    rows = []
    for bench in benches.values():
        for item in (item for item in bench.tables if "+" in item):
            for dtype in (precision.dtype for precision in SINGLE):
                whole = bench.best(item, dtype)
                parts = [bench.best(part, dtype) or bench.best(part, "float32") for part in item.split("+")]
                separate = sum(part["ms"] for part in parts if part)
                if whole and all(parts):
                    one_by_one = ", ".join(part["name"] for part in parts if part)
                    gain = format_factor(separate / whole["ms"])
                    rows.append(
                        [
                            f"`{bench.network}`",
                            item,
                            SHORT[dtype],
                            whole["name"],
                            one_by_one,
                            format_ms(whole["ms"]),
                            format_ms(separate),
                            gain,
                        ]
                    )
    head = ["network", "layers", "type", "fused in", "one by one", "fused ms", "separate ms", "× as fast"]
    return markdown(head, rows, 5)


def whole_program(benches: Benches) -> str:
    """End-to-end time by the variant that all convolutions run on."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name, bench in benches.items():
        for row in bench.document["whole_program"]:
            cells.setdefault((row["conv"], row["precision"]), {})[name] = format_ms(row["ms"]) or "–"
    rows = [
        [conv, precision, *(found.get(network, "") for network in benches)]
        for (conv, precision), found in cells.items()
    ]
    head = ["convolutions", "as", *(f"{name} ms" for name in benches)]
    notes = textwrap.fill(f"Fastest: {_fastest(benches)}. {_below_op_times(benches)}", WIDTH, break_on_hyphens=False)
    return f"{_images(benches)} images:\n\n{markdown(head, rows, 2)}\n\n{notes}"


def _fastest(benches: Benches) -> str:
    """The least time of each network, and what it was reached by."""
    found = []
    for name, bench in benches.items():
        timed = [row for row in bench.document["whole_program"] if row["ms"]]
        best = min(timed, key=lambda row: row["ms"])
        found.append(f"`{name}` by {best['conv']} in {best['precision']}")
    return ", ".join(found)


def _below_op_times(benches: Benches) -> str:
    """The variants with which the whole program takes less than their convolutions alone."""
    found: dict[str, list[str]] = {}
    for name, bench in benches.items():
        for row in bench.document["whole_program"]:
            alone = bench.sum_ms(row["conv"], BY_NAME[row["precision"]].dtype)
            if row["ms"] and alone and row["ms"] < alone:
                found.setdefault(f"{row['conv']} in {row['precision']}", []).append(f"`{name}`")
    if not found:
        return "No variant takes less than its op times."
    where = "; ".join(f"{variant} ({', '.join(networks)})" for variant, networks in found.items())
    return f"Less than their op times take: {where}."
