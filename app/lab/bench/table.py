"""Format a bench document as text."""

from collections.abc import Iterable, Sequence

from app.base.precision import SHORT
from app.lab.bench.standing import describe_rank
from app.lab.document import heading_lines
from app.records.bench import Batch, Bench, Program, Ratios, Row, Table, Total
from app.terminal.text import WIDTH, Column, format_factor, format_ms, paragraph, table

KERNEL, TYPE = Column("kernel", left=True), Column("type", left=True)
RATIOS = (Column("× library"), Column("× before"))
KERNELS = (
    *(KERNEL, TYPE, Column("ms"), Column("spread", optional=4), Column("TFLOP/s", optional=1)),
    *(Column("GB/s", optional=5), Column("% peak"), *RATIOS, Column("error", optional=3), Column("runs", optional=6)),
    Column("remarks", left=True, optional=2),
)
PROGRAMS = (
    *(Column("convolutions", left=True), Column("as", left=True), Column("ms"), Column("spread", optional=1)),
    *(Column("images/s"), Column("kernels", left=True)),
)


def as_text(document: Bench, width: int = WIDTH) -> str:
    """Return the document as text: heading, tables, texts on a user's kernel, and notes."""
    parts = [_header_lines(document, width), *(_table_lines(item, width) for item in document["tables"])]
    if document["totals"]:
        parts.append(_totals_table(document["totals"], width))
        parts += [_batches_table(document["batches"], width)] if len(document["batches"]) > 1 else []
    parts += [_end_to_end_table(batch, width) for batch in document["batches"] if batch["whole_program"]]
    parts += [paragraph(text, width) for item in document["tables"] for text in describe_rank(item)]
    parts += [paragraph(f"note: {note}", width) for note in document["notes"]]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _header_lines(document: Bench, width: int) -> list[str]:
    peaks = document["peaks"]
    arithmetic = ", ".join(f"{short_peak_name(name)} {rate:.1f}" for name, rate in peaks["tflops"].items())
    pairs = {
        "peaks": f"measured: {arithmetic} TFLOP/s (tf32 and fp16 alone: by mma.sync); "
        f"copy {peaks['gbytes_per_s']:,.0f} GB/s",
        "times": f"CUDA events, images on the card; {document['settings']['rule']}",
        "checks": "every element against float64; 'error' is the worst one ÷ what is allowed for it",
        "columns": "'% peak': the larger of the shares of measured arithmetic (ari: of its own instructions, in fp32x "
        "by all fp16 products) and bandwidth (mem); '× library', '× before': times as fast as cuBLAS (else cuDNN), "
        "as the step before, in the same type",
    }
    return heading_lines(f"Bench of {document['subject']}, {document['images']:,} images", document, pairs, width)


def short_peak_name(name: str) -> str:
    """Return the name of a peak with the short name of its type: ``float16 wgmma`` → ``fp16 wgmma``."""
    dtype, *family = name.split()
    return " ".join([SHORT[dtype], *family])


def _table_lines(item: Table, width: int) -> list[str]:
    problem = next(iter(item["problems"].values()))
    title = f"{item['item']} ({item['images']:,} images; {problem})"
    return [*paragraph(title, width), *table(KERNELS, map(_kernel_cells, item["rows"]), width)]


def _kernel_cells(row: Row) -> list[str]:
    rates = row["rates"]
    if row["ms"] is None or rates is None:
        return [*_step_and_type_cells(row), "–", row["reason"]]
    settings = " ".join(f"{name}={value}" for name, value in row["settings"].items())
    return [
        *_step_and_type_cells(row),
        *map(format_ms, (row["ms"], row["spread_ms"])),
        *(f"{rates['tflops']:.2f}", f"{rates['gbytes_per_s']:.0f}"),
        "" if rates["share"] is None else f"{rates['share']:.1%} {rates['limit'][:3]}",
        *_ratio_cells(rates),
        "" if row["error"] is None else f"{row['error']:.2f}",
        str(row["runs"]),
        ", ".join(text for text in (row["note"], settings) if text),
    ]


def _step_and_type_cells(row: Row | Total) -> tuple[str, str]:
    """Return the first two cells of a row: step and name, as in ``02 direct``, and the type."""
    return row["name"] if row["step"] is None else f"{row['step']:02} {row['name']}", SHORT[row["dtype"]]


def _ratio_cells(row: Ratios) -> Iterable[str]:
    """Return the cells of a row for its ratios to the library's time and to the previous step's time."""
    return map(format_factor, (row["library_ratio"], row["previous_ratio"]))


def _totals_table(rows: Sequence[Total], width: int) -> list[str]:
    ops = list(dict.fromkeys(op for row in rows for op in row["ops"]))
    columns = (KERNEL, TYPE, *map(Column, (*ops, "+".join(ops))), *RATIOS)
    cells = (
        [
            *_step_and_type_cells(row),
            *(format_ms(row["ops"].get(op)) for op in ops),
            format_ms(row["sum_ms"]),
            *_ratio_cells(row),
        ]
        for row in rows
    )
    title = "Op times, ms (each convolution and its bias alone, unpooled output)"
    return [*paragraph(title, width), *table(columns, cells, width)]


def _batches_table(batches: Sequence[Batch], width: int) -> list[str]:
    sums: list[dict[tuple[str, ...], float | None]] = [
        {_step_and_type_cells(row): row["sum_ms"] for row in batch["totals"]} for batch in batches
    ]
    columns = (KERNEL, TYPE, *(Column(f"{batch['images']:,}") for batch in batches))
    names = dict.fromkeys(name for found in sums for name in found)
    cells = ([*name, *(format_ms(found.get(name)) for found in sums)] for name in names)
    return ["Sum of the op times by batch size, ms", *table(columns, cells, width)]


def _end_to_end_table(batch: Batch, width: int) -> list[str]:
    title = (
        f"Whole program, {batch['images']:,} images (pinned host memory → host labels, transfers included; host "
        "clock; the other layers as auto chooses)"
    )
    cells = (_end_to_end_cells(row, batch["images"]) for row in batch["whole_program"])
    return [*paragraph(title, width), *table(PROGRAMS, cells, width)]


def _end_to_end_cells(row: Program, images: int) -> list[str]:
    if row["ms"] is None:
        return [row["conv"], row["precision"], "–", row["reason"]]
    kernels = ", ".join(row.get("nodes", [])) if row["conv"] == "auto" else ""
    times = map(format_ms, (row["ms"], row["spread_ms"]))
    return [row["conv"], row["precision"], *times, f"{images / row['ms'] * 1e3:,.0f}", kernels]
