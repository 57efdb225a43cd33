"""The text of a bench document: plain tables, aligned columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.precision import SHORT
from app.text import WIDTH

NAME, TYPE = 28, 6


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """Header, a table for each item, the sums of the op times, the batch sizes, the whole program for each of them."""
    parts = [_header(document), *(_table(table) for table in document["tables"])]
    if document["totals"]:
        parts.append(_totals(document))
    if document["totals"] and len(document["batches"]) > 1:
        parts.append(_batches(document["batches"]))
    parts += [_whole_program(batch) for batch in document["batches"] if batch["whole_program"]]
    parts += ["note: " + note for note in document["notes"]]
    return "\n\n".join(parts)


def _header(document: Mapping[str, Any]) -> str:
    card, peaks = document["device"], document["peaks"]
    arithmetic = ", ".join(f"{short_peak(name)} {rate:.1f}" for name, rate in peaks["tflops"].items())
    return "\n".join(
        [
            f"Bench of {document['subject']}, {document['images']:,} images, {document['date']}",
            f"  card     {card['name']} ({card['architecture']}), driver {card['driver'] or 'unknown'}, "
            f"CUDA {card['cuda']} (driver serves {card['driver_cuda']}), CuPy {card['cupy']}",
            f"  peaks    measured: {arithmetic} TFLOP/s (tf32 and fp16 alone: by mma.sync); "
            f"copy {peaks['gbytes_per_s']:,.0f} GB/s",
            f"  times    CUDA events, images on the card; {document['settings']['rule']}",
            "  checks   every element against float64; 'error' is the worst one ÷ what is allowed for it",
            "  columns  '% peak': the larger of the shares of measured arithmetic (ari: of its own instructions, in "
            "fp32x by all fp16 products) and bandwidth (mem); "
            "'× library', '× before': times as fast as cuBLAS (else cuDNN), as the step before, in the same type",
        ]
    )


def short_peak(name: str) -> str:
    """A peak's name for people: ``fp16``, ``fp16 wgmma``."""
    dtype, *family = name.split()
    return " ".join([SHORT[dtype], *family])


def _table(table: Mapping[str, Any]) -> str:
    problem = next(iter(table["problems"].values()))
    lines = [
        f"{table['item']} ({table['images']:,} images; {problem})",
        f"  {'kernel':<{NAME}}{'type':<{TYPE}}{'ms':>11}{'spread':>9}{'TFLOP/s':>9}{'GB/s':>8}{'% peak':>11}"
        f"{'× library':>11}{'× before':>10}{'error':>7}{'runs':>6}",
    ]
    return "\n".join(lines + [_row(row) for row in table["rows"]])


def _row(row: Mapping[str, Any]) -> str:
    start = f"  {_name(row):<{NAME}}{SHORT[row['dtype']]:<{TYPE}}"
    if row["ms"] is None:
        return f"{start}{'–':>11}  {row['reason']}"
    rates = row["rates"]
    share = "" if rates["share"] is None else f"{rates['share']:.1%} {rates['limit'][:3]}"
    error = "" if row["error"] is None else f"{row['error']:.2f}"
    settings = " ".join(f"{name}={value}" for name, value in row["settings"].items())
    remarks = ", ".join(text for text in (row["note"], settings) if text)
    return (
        f"{start}{row['ms']:>11.4f}{_ms(row['spread_ms']):>9}{rates['tflops']:>9.2f}{rates['gbytes_per_s']:>8.0f}"
        f"{share:>11}{_ratio(rates['library_ratio']):>11}{_ratio(rates['previous_ratio']):>10}{error:>7}"
        f"{row['runs']:>6}  {remarks}"
    ).rstrip()


def _name(row: Mapping[str, Any]) -> str:
    return row["name"] if row["step"] is None else f"{row['step']:>2} {row['name']}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _totals(document: Mapping[str, Any]) -> str:
    rows: Sequence[Mapping[str, Any]] = document["totals"]
    ops = list(dict.fromkeys(op for row in rows for op in row["ops"]))
    lines = [
        "Op times, ms (each convolution and its bias alone, unpooled output)",
        f"  {'kernel':<{NAME}}{'type':<{TYPE}}{''.join(f'{op:>11}' for op in ops)}{'+'.join(ops):>15}"
        f"{'× library':>11}{'× before':>10}",
    ]
    for row in rows:
        times = "".join(f"{_ms(row['ops'].get(op)):>11}" for op in ops)
        lines.append(
            f"  {_name(row):<{NAME}}{SHORT[row['dtype']]:<{TYPE}}{times}{_ms(row['sum_ms']):>15}"
            f"{_ratio(row['library_ratio']):>11}{_ratio(row['previous_ratio']):>10}".rstrip()
        )
    return "\n".join(lines)


def _batches(batches: Sequence[Mapping[str, Any]]) -> str:
    """Sums of op times, a column for each batch size."""
    sizes = [batch["images"] for batch in batches]
    names: dict[tuple[str, str], Mapping[str, Any]] = {}
    sums: dict[tuple[str, str], dict[int, float | None]] = {}
    for batch in batches:
        for row in batch["totals"]:
            own = (row["name"], row["dtype"])
            names.setdefault(own, row)
            sums.setdefault(own, {})[batch["images"]] = row["sum_ms"]
    head = "".join(f"{size:>12,}" for size in sizes)
    lines = ["Sum of the op times by batch size, ms", f"  {'kernel':<{NAME}}{'type':<{TYPE}}{head}"]
    for own, row in names.items():
        times = "".join(f"{_ms(sums[own].get(size)):>12}" for size in sizes)
        lines.append(f"  {_name(row):<{NAME}}{SHORT[row['dtype']]:<{TYPE}}{times}".rstrip())
    return "\n".join(lines)


def _whole_program(batch: Mapping[str, Any]) -> str:
    lines = [
        f"Whole program, {batch['images']:,} images (pinned host memory → host labels, transfers included; host "
        "clock; the other layers as auto chooses)",
        f"  {'convolutions':<{NAME}}{'as':<{TYPE}}{'ms':>11}{'spread':>9}{'images/s':>14}",
    ]
    for row in batch["whole_program"]:
        start = f"  {row['conv']:<{NAME}}{row['precision']:<{TYPE}}"
        if row["ms"] is None:
            lines.append(f"{start}{'–':>11}  {row['reason']}")
            continue
        speed = batch["images"] / row["ms"] * 1e3
        nodes = f"  {', '.join(row['nodes'])}" if row["conv"] == "auto" else ""
        lines.append(f"{start}{row['ms']:>11.4f}{_ms(row['spread_ms']):>9}{speed:>14,.0f}{nodes}")
    return "\n".join(lines)
