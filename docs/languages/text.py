"""Format the document of ``docs.languages`` as text. Pure functions."""

from collections.abc import Iterable

from app.lab.document import heading_lines
from app.records.languages import Languages, Row
from app.terminal.text import WIDTH, Column, fields, format_factor, format_ms, table

HEADS = ("kernel", "lines", "ms", "÷ our step", "launch µs", "error")
COLUMNS = (Column(HEADS[0], left=True), *map(Column, HEADS[1:]))


def as_text(document: Languages, width: int = WIDTH) -> str:
    """Return the heading, a line for each kernel, and what each language hides."""
    tile = ", ".join(f"{name} {value}" for name, value in document["tile"].items())
    pairs = {
        "layer": f"{document['problem']}; {document['images']:,} images",
        "tile": f"64 maps x 64 pixels, four warps ({tile})",
        "judged": "every output from memory full of NaN, also for "
        f"{' and '.join(map(str, document['batches']))} images; error: the worst ÷ the allowed",
        "launch": "host time to enqueue the work for one image",
    }
    parts = (
        heading_lines("One step in other languages", document, pairs, width),
        table(COLUMNS, table_rows(document["rows"]), width),
        hidden_lines(document["rows"], width),
    )
    return "\n\n".join("\n".join(part) for part in parts)


def table_rows(rows: Iterable[Row]) -> list[list[str]]:
    """Return the cells of the table; a row without times ends with the reason."""
    rows = [*rows]
    step = rows[0]["ms"] if rows else None
    return [_cells(row, step) for row in rows]


def verdict_lines(rows: Iterable[Row]) -> list[str]:
    """Return a line for each language that was interpreted: right, wrong or not judged."""
    said = {row["name"]: f"WRONG: {row['reason']}" if row["wrong"] else row["reason"] or "right" for row in rows}
    return fields(said.items())


def hidden_lines(rows: Iterable[Row], width: int = WIDTH) -> list[str]:
    """Return what each language hides."""
    return ["hidden by the language:", *fields(((row["name"], row["hides"]) for row in rows if row["hides"]), width)]


def _cells(row: Row, step: float | None) -> list[str]:
    lines = f"{row['lines']:,}" if row["lines"] else ""
    if row["ms"] is None:
        return [row["name"], lines, f"{'WRONG: ' * row['wrong']}{row['reason']}"]
    mark = "*" * (row["clock"] == "host")
    factor = format_factor(row["ms"] / step) if step else ""
    launch, error = (format_factor(row[name]) for name in ("launch_us", "error"))
    return [row["name"], lines, format_ms(row["ms"]) + mark, factor, launch, error]
