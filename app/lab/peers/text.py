"""Compute this program's speed-ups over the peers, and format the documents of ``bench --peers`` as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.base.precision import BY_NAME
from app.lab.document import heading_lines
from app.lab.peers.rounds import OURS
from app.lab.peers.torch import NEEDLESS
from app.records.peers import Comparison, FastestPeer, Peers, PeerSettings, Ratio, Row
from app.terminal.text import WIDTH, Column, format_factor, format_ms, paragraph, table

MEASURES = {"on_card_ms": "on the card", "end_to_end_ms": "end to end"}
ROWS = (
    *(Column("engine", left=True), Column("as", left=True)),
    *(Column("on card"), Column("card p10", optional=3), Column("card p90", optional=2)),
    *(Column("end to end"), Column("p10", optional=3), Column("p90", optional=1), Column("p99", optional=1)),
    *(Column("correct", optional=1), Column("other"), Column("margin", optional=1), Column("", left=True)),
)
RATIOS = (Column("ours", left=True), *map(Column, MEASURES.values()), Column("", left=True))
SEARCHES = (
    *(Column("network", left=True), Column("images"), Column("as", left=True), Column("tried")),
    *(Column("on card"), Column("end to end"), Column("fastest setting, and end to end if another", left=True)),
)


def speedups_over_peers(rows: Sequence[Row], unknown: Mapping[str, str]) -> list[Ratio]:
    """Return the fastest peer's median time ÷ ours, on the card and end to end, for each of this program's timed rows.

    unknown: for each precision of the peers, why their fastest settings are not known; empty if they are. Without these
    settings, or after a failure of one of these peers, ratios are None and ``reason`` says why.
    """
    found = []
    for ours in rows:
        if ours["engine"] != OURS or ours["on_card_ms"] is None:
            continue
        against = BY_NAME[ours["precision"]].peers
        peers = [row for row in rows if row["engine"] != OURS and row["precision"] == against]
        failed = next((f"{row['setting']}: {row['reason']}" for row in peers if row["reason"]), "")
        reason = unknown[against] or failed
        entry: Ratio = {
            "precision": ours["precision"],
            "against": against,
            "on_card_ms": None if reason else _fastest_peer("on_card_ms", ours, peers),
            "end_to_end_ms": None if reason else _fastest_peer("end_to_end_ms", ours, peers),
            "reason": reason,
        }
        if ours["setting"]:
            entry["setting"] = ours["setting"]
        found.append(entry)
    return found


def _fastest_peer(measure: str, ours: Any, peers: Sequence[Any]) -> FastestPeer:
    fastest = min(peers, key=lambda row: row[measure]["p50"])
    return {"setting": fastest["setting"], "ratio": fastest[measure]["p50"] / ours[measure]["p50"]}


def as_text(document: Peers, width: int = WIDTH) -> str:
    """Return the document as text: for each network and batch size, a row per engine and the speed-ups over peers."""
    parts = [_header_lines(document, width)]
    for one in document["comparisons"]:
        parts.append(
            [
                f"{one['network']}, {one['images']:,} image{'s' * (one['images'] > 1)}",
                *table(ROWS, map(_engine_cells, one["rows"]), width),
            ]
        )
        if one["ratios"]:
            title = "Speed-up of ours (the median of the fastest setting of a peer ÷ ours)"
            parts.append([title, *table(RATIOS, map(_ratio_cells, one["ratios"]), width)])
        parts.append([line for remark in _row_remarks(one) for line in paragraph(remark, width)])
    parts.append([line for remark in document["notes"] for line in paragraph(remark, width)])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _header_lines(document: Peers, width: int) -> list[str]:
    pairs = {
        "software": ", ".join(f"{name} {version}" for name, version in document["software"].items()),
        "on card": "2 to 10 passes over resident images, back to back, until the device is idle; ÷ their number",
        "end to end": "from the call, device idle, with bytes in page-locked memory to readable labels on the host",
        "clock": f"the host's, for all; {document['rounds']} rounds, in each every engine in turn; medians of all "
        "rounds together, in ms",
        "labels": "of the timed runs: correct; not the float64 reference's ('other'), the largest margin of these",
    }
    return heading_lines("Beside the fastest settings of its peers", document, pairs, width)


def _engine_cells(row: Row) -> list[str]:
    on_card, whole = row["on_card_ms"], row["end_to_end_ms"]
    engine = row["engine"] + f" {row['setting'].partition(',')[0]}" * bool(row["setting"])
    if on_card is None or whole is None:
        return [engine, row["precision"], "–", row["reason"]]
    times = [on_card["p50"], on_card["p10"], on_card["p90"], whole["p50"], whole["p10"], whole["p90"], whole["p99"]]
    margin = "" if row["largest_margin"] is None else f"{row['largest_margin']:.2g}"
    counts = (f"{row['correct']:,}", f"{row['changed']:,}", margin, "WRONG" if row["wrong"] else "")
    return [engine, row["precision"], *map(format_ms, times), *counts]


def _ratio_cells(entry: Ratio) -> list[str]:
    found = (entry["on_card_ms"], entry["end_to_end_ms"])
    slower = any(one is not None and one["ratio"] < 1 for one in found)
    return [
        " ".join(filter(None, (entry["precision"], entry.get("setting")))),
        *("–" if one is None else format_factor(one["ratio"]) for one in found),
        entry["reason"] or "SLOWER" * slower,
    ]


def _row_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield a remark for each engine: its kernels or setting, and how many runs gave labels other than the first's."""
    for row in comparison["rows"]:
        start = f"{row['engine']} {row['precision']}: "
        about = ", ".join(filter(None, (row["setting"], row["note"])))
        if about and not row["reason"]:
            yield start + about
        if row["unsteady"]:
            yield f"{start}{row['unsteady']} timed runs gave other labels"


def search_text(document: PeerSettings, width: int = WIDTH) -> str:
    """Return the searches as text: how many settings were tried, the fastest with times in ms, and failures."""
    rows = []
    for one in document["searches"]:
        tried = len(one["ms"]) + len(one["failed"])
        cells = [one["network"], f"{one['images']:,}", one["precision"], str(tried)]
        if one["ms"]:
            best = [min(one["ms"].items(), key=lambda pair: pair[1][measure]) for measure in (0, 1)]
            settings = "; ".join(dict.fromkeys(setting for setting, _ in best))
            times = [format_ms(ms[measure]) for measure, (_, ms) in enumerate(best)]
            rows.append([*cells, *times, f"{one['engine']} {settings}"])
        else:
            rows.append([*cells, "–", "–", next(iter(one["failed"].values()), "")])
    failed = dict.fromkeys(
        f"{one['engine']} {one['precision']}, {setting}: {reason}"
        for one in document["searches"]
        for setting, reason in one["failed"].items()
        if reason not in NEEDLESS
    )
    notes = [line for text in failed for line in paragraph(text, width)]
    return "\n".join(
        [f"Settings of the peers on {document['card']}, times in ms", *table(SEARCHES, rows, width), *notes]
    )
