"""Compare a user's kernel with the ladder's in a table of ``bench``: which are faster, and what bounds the user's."""

from collections.abc import Sequence

from app.base.precision import SHORT
from app.lab.bench.results import FILE, LIBRARY, OURS
from app.records.bench import Row, Table, TimedRow
from app.terminal.text import format_ms

FULL = 0.7  # a kernel is said to be bound by a limit if it reaches at least this share of it


def describe_rank(table: Table) -> list[str]:
    """Return a text for each arithmetic type of the user's kernel: its place among the ladder's, and what bounds it."""
    rows = table["rows"]
    return [
        _describe_row(table, row, [other for other in rows if other["dtype"] == row["dtype"]])
        for row in rows
        if row["kind"] == FILE
    ]


def _describe_row(table: Table, mine: Row, rows: Sequence[Row]) -> str:
    where = f"{mine['name']} on {table['item']}, {SHORT[mine['dtype']]}: "
    if mine["ms"] is None or mine["rates"] is None:
        return f"{where}{'WRONG: ' if mine['wrong'] else 'not timed: '}{mine['reason']}"
    faster, slower = split_faster_and_slower(rows, mine)
    place = f"place {len(faster) + 1} of {len(faster) + len(slower) + 1}"
    told = [f"{format_ms(mine['ms'])} ms, {place}; every output is right"]
    if slower:
        more = f" and {len(slower) - 1} slower step{'s' * (len(slower) > 2)}" if len(slower) > 1 else ""
        told.append(f"it beats {_name_with_ratio(slower[0], mine['ms'])}{more}")
    if faster:
        ahead = f"next is {_name_with_ratio(faster[-1], mine['ms'])}"
        told.append(ahead if len(faster) == 1 else f"{ahead}, first is {_name_with_ratio(faster[0], mine['ms'])}")
    told += [
        f"{row['name']} takes {format_ms(row['ms'])} ms"
        for row in rows
        if row["kind"] == LIBRARY and row["step"] is None and row["ms"] is not None
    ]
    return where + "; ".join([*told, _bound_sentence(mine)]) + "."


def _bound_sentence(mine: TimedRow) -> str:
    """Return which limit of the card bounds the row's time, as text."""
    rates = mine["rates"]
    share = rates["share"] or 0.0
    what = "its multiplications" if rates["limit"] == "arithmetic" else "moving each array once"
    least = f"the bound is {format_ms(mine['ms'] * share)} ms for {what}, {share:.0%} of its time"
    if share >= FULL:
        return f"{least}: {rates['limit']} bounds it"
    other = "loads, other instructions or waiting bound it"
    return f"{least}: neither arithmetic nor memory, but {other}"


def split_faster_and_slower(rows: Sequence[Row], mine: TimedRow) -> tuple[list[TimedRow], list[TimedRow]]:
    """Return the ladder's timed rows in the type of ``mine``, those at least as fast and the slower ones, by time."""
    steps = [row for row in rows if row["dtype"] == mine["dtype"] and row["kind"] in (OURS, LIBRARY)]
    timed = sorted(
        (row for row in steps if row["ms"] is not None and row["step"] is not None), key=lambda row: row["ms"]
    )
    slower = [row for row in timed if row["ms"] > mine["ms"]]
    return timed[: len(timed) - len(slower)], slower


def step_name(row: Row) -> str:
    """Return a row's step of the ladder and name: ``02 direct``."""
    return f"{row['step']:02} {row['name']}"


def _name_with_ratio(row: TimedRow, ms: float) -> str:
    return f"{step_name(row)} ({format_ms(row['ms'])} ms, {row['ms'] / ms:.2f} of its time)"
