"""Compute ratios between engines and format a peers document as text. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from app.base.precision import BY_NAME
from app.lab.document import heading
from app.records.peers import Best, Peers, Quantiles, Ratio, Row
from app.terminal.text import WIDTH, Column, format_factor, format_ms, paragraph, table

MEASURES = {"on_card_ms": "on the card", "end_to_end_ms": "end to end"}
ROWS = (
    *(Column("engine", left=True), Column("as", left=True)),
    *(Column("on card"), Column("card p10", optional=3), Column("card p90", optional=2)),
    *(Column("end to end"), Column("p10", optional=3), Column("p90", optional=1), Column("p99", optional=1)),
    *(Column("correct"), Column("other"), Column("margin", optional=1), Column("", left=True)),
)
RATIOS = (*(Column(head, left=True) for head in ("ours", "peer", "as")), *map(Column, MEASURES.values()))


def speedups_over_peers(rows: Sequence[Row]) -> list[Ratio]:
    """Return for each of our rows each peer's median ÷ ours, by measurement and engine, and the best peer's ratio."""
    found = []
    for own in rows:
        if not own["ours"] or own["on_card_ms"] is None:
            continue
        against = BY_NAME[own["precision"]].peers
        peers = [row for row in rows if not row["ours"] and row["precision"] == against and row["on_card_ms"]]
        of_card = {row["engine"]: row["on_card_ms"] for row in (own, *peers)}
        whole = {row["engine"]: row["end_to_end_ms"] for row in (own, *peers)}
        entry: Ratio = {
            "precision": own["precision"],
            "against": against,
            "on_card_ms": _peer_ratios(own["engine"], of_card),
            "end_to_end_ms": _peer_ratios(own["engine"], whole),
        }
        found.append(entry)
    return found


def _peer_ratios(ours: str, times: Mapping[str, Quantiles | None]) -> Best:
    """Return each peer's median ÷ ours, and the fastest peer. times: engine → quantiles."""
    medians = {engine: found["p50"] for engine, found in times.items() if found is not None}
    each = {engine: ms / medians[ours] for engine, ms in medians.items() if engine != ours}
    best = min(each, key=lambda name: each[name], default=None)
    return {"best": best, "ratio": each[best] if best else None, "each": each}


def as_text(document: Peers, width: int = WIDTH) -> str:
    """Format the header, a row for each engine, and the speed-ups over the peers."""
    parts = [_header(document, width), table(ROWS, map(_engine_cells, document["rows"]), width)]
    if any(entry["on_card_ms"]["each"] for entry in document["ratios"]):
        title = "Speed-up of ours (the peer's median ÷ ours)"
        parts.append([title, *table(RATIOS, _ratio_rows(document["ratios"]), width)])
    remarks = [*(note for row in document["rows"] for note in _notes(row)), *document.get("notes", ())]
    notes = [line for remark in remarks for line in paragraph(remark, width)]
    return "\n\n".join("\n".join(lines) for lines in (*parts, notes) if lines)


def _header(document: Peers, width: int) -> list[str]:
    pairs = {
        "software": ", ".join(f"{name} {version}" for name, version in document["software"].items()),
        "on card": "2 to 10 passes over resident images, back to back, until the device is idle; ÷ their number",
        "end to end": "from the call, device idle, with bytes in page-locked memory to readable labels on the host",
        "clock": f"the host's, for all; {document['rounds']} rounds, in each every engine in turn; medians of all "
        "rounds together, in ms",
        "labels": "of the timed runs: correct; not the float64 reference's ('other'), the largest margin of these",
    }
    return heading(f"{document['network']} beside its peers, {document['images']:,} images", document, pairs, width)


def _engine_cells(row: Row) -> list[str]:
    on_card, whole = row["on_card_ms"], row["end_to_end_ms"]
    if on_card is None or whole is None:
        return [row["engine"], row["precision"], "–", row["reason"]]
    times = [on_card["p50"], on_card["p10"], on_card["p90"], whole["p50"], whole["p10"], whole["p90"], whole["p99"]]
    margin = "" if row["largest_margin"] is None else f"{row['largest_margin']:.2g}"
    counts = (f"{row['correct']:,}", f"{row['changed']:,}", margin, "WRONG" if row["wrong"] else "")
    return [row["engine"], row["precision"], *map(format_ms, times), *counts]


def _ratio_rows(entries: Sequence[Ratio]) -> Iterator[list[str]]:
    """Yield for each of our rows the cells of the fastest peer, then of each peer, by both measurements."""
    for entry in entries:
        on_card, whole = entry["on_card_ms"], entry["end_to_end_ms"]
        if on_card["each"]:
            best = {"the fastest": (on_card["ratio"], whole["ratio"])}
            each = {name: (ratio, whole["each"][name]) for name, ratio in on_card["each"].items()}
            for name, found in (best | each).items():
                yield [entry["precision"], name, entry["against"], *map(format_factor, found)]


def _notes(row: Row) -> Iterator[str]:
    """Yield remarks on the row's times."""
    start = f"{row['engine']} {row['precision']}: "
    if row["note"]:
        yield start + row["note"]
    tried, settings = row.get("tried", []), row.get("settings", {})
    if len(tried) > 1 and not row["reason"]:
        best = ", ".join(f"{title}: {settings[measure]}" for measure, title in MEASURES.items())
        ran = sum(not one["reason"] for one in tried)
        yield f"{start}best of {ran} settings {best}"
    if row["unsteady"]:
        yield f"{start}{row['unsteady']} timed runs gave other labels"
