"""Compute ratios between engines, and write a peers document as text. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.bench.document import heading
from app.precision import BY_NAME
from app.text import WIDTH, Column, format_factor, format_ms, paragraph, table

MEASURES = {"on_card_ms": "on the card", "end_to_end_ms": "end to end"}
ROWS = (
    *(Column("engine", left=True), Column("as", left=True)),
    *(Column("on card"), Column("card p10", optional=3), Column("card p90", optional=2)),
    *(Column("end to end"), Column("p10", optional=3), Column("p90", optional=1), Column("p99", optional=1)),
    *(Column("correct"), Column("other"), Column("margin", optional=1), Column("", left=True)),
)
RATIOS = (*(Column(head, left=True) for head in ("ours", "peer", "as")), *map(Column, MEASURES.values()))


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each of our rows each peer's median ÷ ours, by measure and engine, and the best peer's ratio."""
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
    """Return the header, a row for each engine, and how many times as fast ours are."""
    parts = [_header(document, width), table(ROWS, map(_row, document["rows"]), width)]
    if any(entry["on_card_ms"]["each"] for entry in document["ratios"]):
        title = "Speed-up of ours (the peer's median ÷ ours)"
        parts.append([title, *table(RATIOS, _ratios(document["ratios"]), width)])
    remarks = [*(note for row in document["rows"] for note in _notes(row)), *document.get("notes", ())]
    notes = [line for remark in remarks for line in paragraph(remark, width)]
    return "\n\n".join("\n".join(lines) for lines in (*parts, notes) if lines)


def _header(document: Mapping[str, Any], width: int) -> list[str]:
    pairs = {
        "software": ", ".join(f"{name} {version}" for name, version in document["software"].items()),
        "on card": "2 to 10 passes over resident images, back to back, until the device is idle; ÷ their number",
        "end to end": "from the call, device idle, with bytes in page-locked memory to readable labels on the host",
        "clock": f"the host's, for all; {document['rounds']} rounds, in each every engine in turn; medians of all "
        "rounds together, in ms",
        "labels": "of the timed runs: correct; not the float64 reference's ('other'), the largest margin of these",
    }
    return heading(f"{document['network']} beside its peers, {document['images']:,} images", document, pairs, width)


def _row(row: Mapping[str, Any]) -> list[str]:
    on_card, whole = row["on_card_ms"], row["end_to_end_ms"]
    if on_card is None:
        return [row["engine"], row["precision"], "–", row["reason"]]
    times = [*(on_card[q] for q in ("p50", "p10", "p90")), *(whole[q] for q in ("p50", "p10", "p90", "p99"))]
    margin = "" if row["largest_margin"] is None else f"{row['largest_margin']:.2g}"
    counts = (f"{row['correct']:,}", f"{row['changed']:,}", margin, "WRONG" if row["wrong"] else "")
    return [row["engine"], row["precision"], *map(format_ms, times), *counts]


def _ratios(entries: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """For each of ours a row for the fastest peer, by either measure, and one for each peer."""
    for entry in entries:
        on_card, whole = (entry[measure] for measure in MEASURES)
        if on_card["each"]:
            best = {"the fastest": (on_card["ratio"], whole["ratio"])}
            each = {name: (ratio, whole["each"][name]) for name, ratio in on_card["each"].items()}
            for name, found in (best | each).items():
                yield [entry["precision"], name, entry["against"], *map(format_factor, found)]


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    """Return remarks on the row's times for readers."""
    start = f"{row['engine']} {row['precision']}: "
    if row["note"]:
        yield start + row["note"]
    if len(row["tried"]) > 1 and not row["reason"]:
        best = ", ".join(f"{title}: {row['settings'][measure]}" for measure, title in MEASURES.items())
        ran = sum(not tried["reason"] for tried in row["tried"])
        yield f"{start}best of {ran} settings {best}"
    if row["unsteady"]:
        yield f"{start}{row['unsteady']} timed runs gave other labels"
