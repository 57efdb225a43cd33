"""``main.py compare``: two reports of one kind, row by row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.commands.options.compare import CompareRequest
from app.compare.interval import RELEVANT, exceeds, interval, percent, verdict
from app.compare.rows import KINDS, Timed, context, timed
from app.errors import UserError
from app.files.checks import BadValueError, fields, shown
from app.files.reading import read_json
from app.report import publish
from app.text import WIDTH, Column, format_ms, paragraph, table
from app.text import fields as lines_of

SCHEMA = "lenet5-inference/compare/1"
REMEDY = "name a JSON file that --json of the main job, bench, sweep or train wrote"
COLUMNS = [
    Column("", left=True),
    *(Column(head) for head in ("before", "after", "change", "95 % interval")),
    Column("", left=True),
]


def compare(request: CompareRequest) -> int:
    """Compare, print and write. Returns 1 if a row became slower by over ``fail_above`` percent. Raises UserError."""
    before, after = (_read(path) for path in (request.before, request.after))
    if before["schema"] != after["schema"]:
        kinds = f"{before['schema']} and {after['schema']}"
        raise UserError(f"{request.before} and {request.after} are of different kinds ({kinds}): name two of one kind")
    rows, contexts = zip(*(_parsed(*one) for one in ((request.before, before), (request.after, after))), strict=True)
    differences = [_differences(*pair) for pair in zip(*contexts, strict=True)]
    if not request.ignore_settings:
        for what, found in zip(("machines", "settings"), differences, strict=False):
            if found:
                told = "; ".join(f"{one['name']}: {shown(one['before'])}, {shown(one['after'])}" for one in found)
                raise UserError(f"the reports are of different {what} ({told}): add --ignore-settings to compare them")
    both = [_row(rows[0][name], rows[1][name], request.fail_above) for name in rows[0] if name in rows[1]]
    if not both:
        raise UserError(f"{request.before} and {request.after} have no timed row in common: compare others")
    document = {
        "schema": SCHEMA,
        "of": before["schema"],
        "before": str(request.before),
        "after": str(request.after),
        "fail_above": request.fail_above,
        "differences": [one for found in differences for one in found],
        "rows": both,
        "only_before": [name for name in rows[0] if name not in rows[1]],
        "only_after": [name for name in rows[1] if name not in rows[0]],
        "failed": [row["name"] for row in both if row["failed"]],
    }
    publish(document, as_text, request.output)
    return int(bool(document["failed"]))


def _read(path: Path) -> dict[str, Any]:
    """Read a report of a known kind. Raises UserError."""
    document: dict[str, Any] = read_json(path, fields({"schema": _known}, others=True), REMEDY)
    return document


def _parsed(path: Path, document: dict[str, Any]) -> tuple[dict[str, Timed], tuple[dict[str, Any], ...]]:
    """Return the report's rows and context. Raises UserError for a report that is not whole."""
    try:
        return timed(document), context(document)
    except BadValueError as error:
        raise UserError(f"{path} has wrong content ({error}): {REMEDY}") from None


def _known(schema: Any) -> str:
    if not isinstance(schema, str) or schema not in KINDS:
        raise BadValueError(f"{shown(schema)} has no times that this version compares")
    return schema


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = [*before, *(name for name in after if name not in before)]
    found = [{"name": name, "before": before.get(name), "after": after.get(name)} for name in names]
    return [one for one in found if one["before"] != one["after"]]


def _row(before: Timed, after: Timed, fail_above: float | None) -> dict[str, Any]:
    change, bounds = percent(before.median, after.median), interval(before.samples, after.samples)
    return {
        "name": before.name,
        "unit": before.unit,
        "before": before.median,
        "after": after.median,
        "percent": change,
        "interval": None if bounds is None else list(bounds),
        "verdict": verdict(change, bounds),
        "failed": fail_above is not None and exceeds(change, bounds, fail_above),
    }


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """Format the comparison: a row for each timed row of both reports."""
    rows = document["rows"]
    unit = " and ".join(dict.fromkeys(row["unit"] for row in rows))
    _, kind, _ = document["of"].split("/")
    pairs = [(name, document[name]) for name in ("before", "after")]
    pairs += [("differs", f"{one['name']}: {one['before']} → {one['after']}") for one in document["differences"]]
    lines = [
        *paragraph(f"Two documents of kind {kind}, medians in {unit}; change: of the time", width),
        *lines_of(pairs, width),
        *table(COLUMNS, map(_cells, rows), width),
    ]
    for what in ("before", "after"):
        if names := document[f"only_{what}"]:
            lines += paragraph(f"only {what}: {', '.join(names)}", width)
    if any(row["interval"] is None for row in rows):
        lines += paragraph("unknown: too few samples for an interval; run more, or write the report again", width)
    counts = {name: sum(row["verdict"] == name for row in rows) for name in ("slower", "faster", "same", "unknown")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines += paragraph(f"{told} (changes below {RELEVANT:g} % are 'same')", width)
    if document["fail_above"] is not None:
        failed = ", ".join(document["failed"])
        passed = f"PASSED: no row became slower by over {document['fail_above']:g} %"
        lines += paragraph(
            f"FAILED: slower by over {document['fail_above']:g} %: {failed}" if failed else passed, width
        )
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    bounds = row["interval"]
    return [
        row["name"],
        format_ms(row["before"]),
        format_ms(row["after"]),
        f"{row['percent']:+.1f} %",
        "" if bounds is None else f"{bounds[0]:+.1f} to {bounds[1]:+.1f}",
        row["verdict"],
    ]
