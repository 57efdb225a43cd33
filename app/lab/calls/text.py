"""Format as text the document with the times of calls of ``Classifier`` and of PyTorch (``app.lab.calls``)."""

from collections.abc import Iterator

from app.lab.calls.callers import COMPILE, EAGER, OURS
from app.lab.document import heading_lines
from app.records.calls import Call, Caller, Calls
from app.terminal.text import WIDTH, Column, format_factor, paragraph, table

TITLES = {OURS: "Classifier", EAGER: "PyTorch eager", COMPILE: "torch.compile"}
COLUMNS = (
    Column("caller", left=True),
    *(Column(head) for head in ("median µs", "p10", "p90", "p99", "calls", "÷ ours")),
    Column("setting", left=True, optional=1),
)


def as_text(document: Calls, width: int = WIDTH) -> str:
    """Return the document as text: a heading, a line per kind of call and caller, and notes on differing labels."""
    pairs = {
        "software": ", ".join(f"{name} {version}" for name, version in document["software"].items()),
        "time": "the host's clock, from the call to its return; each call has other images than the last; "
        f"{document['rounds']} rounds, in each every caller in turn",
        "labels": "all checked against the engine's before the first timed call, and after each",
        "÷ ours": "the caller's median ÷ ours: above 1, ours is faster",
    }
    title = f"{document['network']}: calls of Classifier beside PyTorch"
    lines = table(COLUMNS, _table_rows(document), width)
    notes = [line for row in document["rows"] for note in _label_notes(row) for line in paragraph(note, width)]
    parts = (heading_lines(title, document, pairs, width), lines, notes)
    return "\n\n".join("\n".join(part) for part in parts if part)


def speed_verdict(row: Call) -> str:
    """Return as text how many times as fast as the best peer we are, after ``LOST`` if slower; also for tf32 peers."""
    ratio, beside = row["ratio"], row["tf32_ratio"]
    if ratio is None:
        return "no comparison"
    told = f"{format_factor(ratio)} × as fast as the best peer"
    told = told if ratio >= 1 else f"LOST, {told}"
    return told if beside is None else f"{told}, {format_factor(beside)} × as fast as the best in tf32"


def format_us(ms: float | None) -> str:
    """Return milliseconds as microseconds, with one decimal below 100; empty for None."""
    return "" if ms is None else f"{ms * 1e3:,.1f}" if ms < 0.1 else f"{ms * 1e3:,.0f}"


def _table_rows(document: Calls) -> Iterator[list[str]]:
    for row in document["rows"]:
        yield [f"{row['what']}, {row['precision']}: {speed_verdict(row)}" + " – WRONG LABELS" * row["wrong"]]
        ours = row["callers"][0]["ms"]
        for caller in row["callers"]:
            yield _caller_cells(caller, ours["p50"] if ours else None)


def _caller_cells(caller: Caller, ours: float | None) -> list[str]:
    name = f"  {TITLES[caller['engine']]} {caller['precision']}"
    times = caller["ms"]
    if times is None:
        return [name, caller["reason"]]
    factor = format_factor(times["p50"] / ours) if ours and caller["engine"] != OURS else ""
    figures = [format_us(times[key]) for key in ("p50", "p10", "p90", "p99")]
    return [name, *figures, f"{times['runs']:,}", factor, caller["setting"]]


def _label_notes(row: Call) -> Iterator[str]:
    """Yield a remark on each caller whose labels differ from the engine's, or from call to call."""
    for caller in row["callers"]:
        start = f"{row['name']}: {TITLES[caller['engine']]} {caller['precision']}"
        if caller["changed"] and not caller["reason"]:
            yield f"{start} gave {caller['changed']:,} labels that are not the engine's"
        if caller["unsteady"]:
            yield f"{start} gave other labels in {caller['unsteady']:,} timed calls"
