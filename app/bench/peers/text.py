"""Ratios between engines, and the text of a peers document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.precision import BY_NAME
from app.text import WIDTH

MEASURES = {"on_card_ms": "on the card", "end_to_end_ms": "end to end"}
NAME, AS = 24, 7


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each of our rows: the peers' median ÷ ours, by measure and engine, and the best peer's."""
    found = []
    for own in rows:
        if not own["ours"] or own["on_card_ms"] is None:
            continue
        against = BY_NAME[own["precision"]].peers
        peers = [row for row in rows if not row["ours"] and row["precision"] == against and row["on_card_ms"]]
        entry: dict[str, Any] = {"precision": own["precision"], "against": against}
        for measure in MEASURES:
            each = {peer["engine"]: peer[measure]["p50"] / own[measure]["p50"] for peer in peers}
            best = min(each, key=lambda name: each[name], default=None)
            entry[measure] = {"best": best, "ratio": each[best] if best else None, "each": each}
        found.append(entry)
    return found


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """Header, a row for each engine, and how many times as fast ours are."""
    parts = [_header(document), _table(document)]
    if any(entry["on_card_ms"]["each"] for entry in document["ratios"]):
        parts.append(_ratios(document["ratios"]))
    notes = [
        f"{row['engine']} {row['precision']}: {note}"
        for row in document["rows"]
        for note in (
            row["note"],
            _settings(row),
            f"{row['unsteady']} timed runs gave other labels" if row["unsteady"] else "",
        )
        if note
    ]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _settings(row: Mapping[str, Any]) -> str:
    """The fastest of those that were tried, where there was a choice."""
    if len(row["tried"]) < 2 or row["reason"]:
        return ""
    best = ", ".join(f"{title}: {row['settings'][measure]}" for measure, title in MEASURES.items())
    return f"best of {len(row['tried'])} settings {best}"


def _header(document: Mapping[str, Any]) -> str:
    card = document["device"]
    software = ", ".join(f"{name} {version}" for name, version in document["software"].items())
    return "\n".join(
        [
            f"{document['network']} beside its peers, {document['images']:,} images, {document['date']}",
            f"  card        {card['name']} ({card['architecture']}), driver {card['driver'] or 'unknown'}, "
            f"CUDA {card['cuda']}, CuPy {card['cupy']}",
            f"  software    {software}",
            "  on card     passes over resident images enqueued back to back, ÷ their number; until the device is idle",
            "  end to end  from the call, device idle, with bytes in page-locked memory to readable labels on the host",
            f"  clock       the host's, for all; {document['rounds']} rounds, in each every engine in turn; "
            "ms, all rounds together",
            "  labels      of the timed runs: correct; not the float64 reference's ('other'), the largest margin of "
            "these",
        ]
    )


def _table(document: Mapping[str, Any]) -> str:
    lines = [
        f"  {'':<{NAME + AS}}{'on the card, ms':^27}{'end to end, ms':^36}",
        f"  {'engine':<{NAME}}{'as':<{AS}}{'median':>9}{'p10':>9}{'p90':>9}{'median':>9}{'p10':>9}{'p90':>9}{'p99':>9}"
        f"{'correct':>9}{'other':>7}{'margin':>9}",
    ]
    return "\n".join(lines + [_row(row) for row in document["rows"]])


def _row(row: Mapping[str, Any]) -> str:
    start = f"  {row['engine']:<{NAME}}{row['precision']:<{AS}}"
    on_card, whole = row["on_card_ms"], row["end_to_end_ms"]
    if on_card is None:
        return f"{start}{'–':>9}  {row['reason']}"
    times = [*(on_card[q] for q in ("p50", "p10", "p90")), *(whole[q] for q in ("p50", "p10", "p90", "p99"))]
    margin = "" if row["largest_margin"] is None else f"{row['largest_margin']:.2g}"
    wrong = "  WRONG" if row["wrong"] else ""
    return (
        f"{start}{''.join(f'{_ms(ms):>9}' for ms in times)}{row['correct']:>9,}{row['changed']:>7,}{margin:>9}".rstrip()
        + wrong
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _ratios(entries: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in entries for name in entry["on_card_ms"]["each"]))
    lines = [
        "Ours are so many times as fast (the peer's median ÷ ours)",
        f"  {'ours':<8}{'peers':<7}{'':<13}{'best':>8}{''.join(f'{name:>{NAME}}' for name in names)}",
    ]
    for entry in entries:
        for measure, title in MEASURES.items():
            each, ratio = entry[measure]["each"], entry[measure]["ratio"]
            if ratio is not None:
                cells = (f"{each[name]:.2f}" if name in each else "" for name in names)
                lines.append(
                    f"  {entry['precision']:<8}{entry['against']:<7}{title:<13}{ratio:>8.2f}"
                    f"{''.join(f'{cell:>{NAME}}' for cell in cells)}".rstrip()
                )
    return "\n".join(lines)
