"""Run ``main.py compare``: compare reports of one kind from before and after a change, row by row."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.commands.compare import CompareRequest
from app.files.checks import BadValueError, format_for_error, object_check
from app.files.reading import read_json
from app.lab.compare.interval import (
    RELEVANT,
    VERDICTS,
    Bounds,
    Runs,
    change_verdict,
    confidence_intervals,
    exceeds_allowed_slowdown,
    median_of_side,
    percent_change,
)
from app.lab.compare.rows import KINDS, TimedRow, report_context, timed_rows
from app.records.operate import Compare, ComparedRow, Difference
from app.terminal.output import publish_report
from app.terminal.text import WIDTH, Column, fields, format_ms, paragraph, table

REMEDY = "name a JSON file that --json of the main job, bench, sweep or train wrote"
COLUMNS = [
    Column("", left=True),
    *(Column(head) for head in ("before", "after", "change", "95 % interval")),
    Column("", left=True),
]
CONTEXT = ("machines", "settings", "software")  # parts of a report's context; the first two must be equal
RUNS: Final = "runs"
SAMPLES: Final = "samples"  # noise estimated from the samples within one run
HOLDS = "If nothing changed, a row is found slower or faster in at most 5 % of cases, over all rows together"
KNOWN = {
    RUNS: f"{HOLDS}: the intervals know how far runs of one side lie apart.",
    SAMPLES: f"{HOLDS}; but of these two runs, not of the program. The intervals know the noise within a run, and not "
    "how far runs of one program lie apart. To judge the program, name several reports per side: BEFORE... -- AFTER...",
}


class Report(Frozen):
    """A report and its timed rows by name. context: fields of the machine, of the settings and of the software."""

    path: Path
    document: dict[str, Any]
    rows: Mapping[str, TimedRow]
    context: tuple[Mapping[str, Any], ...]


Sides = tuple[Sequence[Report], Sequence[Report]]


def compare(request: CompareRequest) -> int:
    """Compare reports; print and write the result. Return 1 if a row fails ``--fail-above``. Raises UserError."""
    before, after = sides = _read_sides(request)
    reports = [*before, *after]
    if len(kinds := _distinct_values(report.document["schema"] for report in reports)) > 1:
        raise UserError(
            f"{_paths_text(reports)} are of different kinds ({' and '.join(kinds)}): name reports of one kind"
        )
    differences = [_differing_fields(sides, part) for part in range(len(CONTEXT))]
    for what, found in zip(CONTEXT[:2], differences, strict=False):
        if found and not request.ignore_settings:
            told = "; ".join(f"{one['name']}: {_values_text(one['before'] + one['after'])}" for one in found)
            raise UserError(f"the reports are of different {what} ({told}): add --ignore-settings to compare them")
    names = dict.fromkeys(name for report in reports for name in report.rows)
    counts = {name: [sum(name in report.rows for report in side) for side in sides] for name in names}
    complete = [name for name, found in counts.items() if found == [len(before), len(after)]]
    if not complete:
        raise UserError(f"{_paths_text(reports)} have no timed row in common: compare others")
    pairs = [([report.rows[name] for report in before], [report.rows[name] for report in after]) for name in complete]
    rows = [
        _compared_row(*pair, bounds, request.fail_above)
        for pair, bounds in zip(pairs, confidence_intervals(pairs), strict=True)
    ]
    document: Compare = {
        "schema": "lenet5-inference/compare/2",
        "of": kinds[0],
        "before": [str(report.path) for report in before],
        "after": [str(report.path) for report in after],
        "noise": RUNS if len(before) > 1 else SAMPLES,
        "fail_above": request.fail_above,
        "differences": [one for found in differences for one in found],
        "rows": rows,
        "left_out": [
            {"name": name, "before": found[0], "after": found[1]}
            for name, found in counts.items()
            if name not in complete
        ],
        "failed": [row["name"] for row in rows if row["failed"]],
    }
    publish_report(document, as_text, request.output)
    return int(bool(document["failed"]))


def _read_sides(request: CompareRequest) -> Sides:
    """Return the reports from before and after the change: one each, or at least two each. Raises UserError."""
    before, after = request.before, request.after
    if after is None:
        if len(before) != 2:
            raise UserError(f"one list of {len(before)} reports: name two, or two lists, as BEFORE... -- AFTER...")
        before, after = before[:1], before[1:]
    if min(len(before), len(after)) == 1 < max(len(before), len(after)):
        raise UserError("one report cannot be held against several: name at least two on either side of the --")
    sides = ([_read_report(path) for path in before], [_read_report(path) for path in after])
    for side in sides:
        for at, report in enumerate(side):
            for other in side[:at]:
                if report.document == other.document:
                    raise UserError(f"{other.path} and {report.path} are the same report: name each run once")
    return sides


def _read_report(path: Path) -> Report:
    """Read a report from a JSON file. Raises UserError if its kind is unknown or its content wrong."""
    document: dict[str, Any] = read_json(path, object_check({"schema": _check_schema}, others=True), REMEDY)
    try:
        return Report(path, document, timed_rows(document), report_context(document))
    except BadValueError as error:
        raise UserError(f"{path} has wrong content ({error}): {REMEDY}") from None


def _check_schema(schema: Any) -> str:
    if not isinstance(schema, str) or schema not in KINDS:
        raise BadValueError(f"{format_for_error(schema)} has no times that this version compares")
    return schema


def _paths_text(reports: Sequence[Report]) -> str:
    return ", ".join(str(report.path) for report in reports)


def _distinct_values(values: Iterable[Any]) -> list[Any]:
    """Return each different value once, in order. Values may be of any JSON type, also unhashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _values_text(values: Sequence[Any]) -> str:
    return ", ".join(map(format_for_error, _distinct_values(values)))


def _differing_fields(sides: Sides, part: int) -> list[Difference]:
    """Return the fields whose values differ, with each side's values. part: 0 for machine, 1 settings, 2 software."""
    contexts = [[report.context[part] for report in side] for side in sides]
    names = dict.fromkeys(name for side in contexts for one in side for name in one)
    found = [(name, [_distinct_values(one.get(name) for one in side) for side in contexts]) for name in names]
    return [
        {"name": name, "before": before, "after": after}
        for name, (before, after) in found
        if len(_distinct_values(before + after)) > 1
    ]


def _compared_row(before: Runs, after: Runs, bounds: Bounds | None, fail_above: float | None) -> ComparedRow:
    times = median_of_side(before), median_of_side(after)
    change = percent_change(*times)
    return {
        "name": before[0].name,
        "unit": before[0].unit,
        "before": times[0],
        "after": times[1],
        "percent": change,
        "interval": None if bounds is None else list(bounds),
        "verdict": change_verdict(change, bounds, several=len(before) > 1),
        "failed": fail_above is not None and exceeds_allowed_slowdown(change, bounds, fail_above),
    }


def as_text(document: Compare, width: int = WIDTH) -> str:
    """Return the comparison as text: a line for each row that all reports timed, then omitted rows and a summary."""
    rows, several = document["rows"], document["noise"] == RUNS
    unit = " and ".join(dict.fromkeys(row["unit"] for row in rows))
    _, kind, _ = document["of"].split("/")
    pairs = [("before", ", ".join(document["before"])), ("after", ", ".join(document["after"]))]
    for one in document["differences"]:
        before, after = (", ".join(map(str, values)) for values in (one["before"], one["after"]))
        pairs.append(("differs", f"{one['name']}: {before} → {after}"))
    count = len(document["before"]) + len(document["after"])
    what = "means of the runs' medians" if several else "medians"
    lines = [
        *paragraph(f"{count} documents of kind {kind}, {what} in {unit}; change: of the time", width),
        *fields(pairs, width),
        *table(COLUMNS, map(_row_cells, rows), width),
    ]
    if left_out := document["left_out"]:
        told = ", ".join(f"{one['name']} ({one['before']} before, {one['after']} after)" for one in left_out)
        lines += paragraph(f"not in every report: {told}", width)
    if any(row["interval"] is None for row in rows):
        alone = "" if document["fail_above"] is None else "; of these, --fail-above counts the change alone"
        lines += paragraph(
            f"unknown: too few samples for an interval; run more, or write the report again{alone}", width
        )
    counts = Counter(row["verdict"] for row in rows)
    told = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    lines += paragraph(f"{told} (changes below {RELEVANT:g} % are 'same')", width)
    lines += paragraph(KNOWN[document["noise"]], width)
    if document["fail_above"] is not None:
        by = f"slower by over {document['fail_above']:g} %{'' if several else ', between these two runs'}"
        failed = ", ".join(document["failed"])
        lines += paragraph(f"FAILED: {by}: {failed}" if failed else f"PASSED: no row became {by}", width)
    return "\n".join(lines)


def _row_cells(row: ComparedRow) -> list[str]:
    bounds = row["interval"]
    return [
        row["name"],
        format_ms(row["before"]),
        format_ms(row["after"]),
        f"{_signed_percent(row['percent'])} %",
        "" if bounds is None else " to ".join(map(_signed_percent, bounds)),
        row["verdict"],
    ]


def _signed_percent(percent: float) -> str:
    return f"{percent:+.1f}" if abs(percent) < 1e6 else f"{percent:+.1e}"
