"""The profile document as text for people: aligned tables without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.bench.profile.counters import THROUGHPUTS
from app.text import WIDTH


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """The document for people."""
    settings, times = document["settings"], document["end_to_end_ms"]
    both, copies = (document["overlap"][name] for name in ("both_ms", "copies_ms"))
    together = f"{settings['streams']} streams share the card, so times overlap: --streams 1 gives each kernel its own"
    lines = [
        f"{document['network']} in {document['precision']} on {document['batch']:,} images ({document['images']})",
        f"  device    {document['device']['name']} ({document['device']['architecture']})",
        f"  settings  {', '.join(f'{name} {value}' for name, value in settings.items())}",
        "",
        "Kernels and copies (events on their streams; calls, total and MB are per run)",
        f"  {'layer':<22}{'kernel or copy':<36}{'calls':>6}{'total ms':>10}{'share':>7}"
        f"{'min ms':>9}{'average':>9}{'max':>9}{'MB':>9}{'GB/s':>7}",
    ]
    for row in document["rows"]:
        memory = f"{row['bytes'] / 1e6:>9.3f}{row['gbytes_per_s'] or 0:>7.1f}" if row["bytes"] else ""
        lines.append(
            f"  {row['layer']:<22}{row['name']:<36}{row['calls']:>6.0f}{row['total_ms']:>10.4f}{row['share']:>7.1%}"
            f"{row['min_ms']:>9.4f}{row['average_ms']:>9.4f}{row['max_ms']:>9.4f}{memory}"
        )
    lines += [
        f"  some kernel was running for {document['overlap']['kernels_ms']:.4f} ms, a copy to or from the host for "
        f"{copies:.4f} ms, {both / copies if copies else 0:.0%} of it under kernels",
        *([f"  {together}"] if settings["streams"] > 1 else []),
        "",
        "Host API calls (calls and total per run; share of the host's time from start to readable labels)",
        f"  {'call':<30}{'calls':>8}{'total ms':>10}{'share':>7}{'average us':>12}{'max us':>10}",
    ]
    lines += [
        f"  {row['name']:<30}{row['calls']:>8.0f}{row['total_ms']:>10.4f}{row['share']:>7.1%}"
        f"{row['average_us']:>12.2f}{row['max_us']:>10.1f}"
        for row in document["api"]
    ]
    lines += [
        "",
        f"End to end {times['plain']:.4f} ms; with API calls counted {times['counted']:.4f} ms, with two events round "
        f"every kernel and copy {times['events']:.4f} ms: measuring costs that much",
    ]
    if document["trace"] is not None:
        lines.append(f"Timeline of the last run: {document['trace']} (open it at ui.perfetto.dev or chrome://tracing)")
    if document["counters_note"] is not None:
        lines.append(document["counters_note"])
    if document["counters"]:
        lines += ["", *_counter_lines(document["counters"])]
    return "\n".join(lines)


def _counter_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = ("load", "store", "warps", "occupancy")
    heads = (*columns, *THROUGHPUTS)
    lines = [
        "Counters of the first chunk (Nsight Compute, cold caches; %): global load and store efficiency, warp "
        "execution efficiency, occupancy, throughput of each unit",
        f"  {'layer':<22}{'kernel':<30}{''.join(f'{head:>10}' for head in heads)}  bound",
    ]
    for row in rows:
        values = [*(row[name] for name in columns), *row["throughput"].values()]
        cells = "".join(f"{'-' if value is None else f'{value:.1f}':>10}" for value in values)
        lines.append(f"  {row['layer']:<22}{row['name']:<30}{cells}  {row['bound']}")
    return lines
