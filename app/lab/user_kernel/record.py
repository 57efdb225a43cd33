"""Write records of correct user kernels and their times; read them, and refuse figures that contradict the samples."""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from app import VERSION
from app.base.errors import print_to_stderr
from app.cuda.compiler import import_nvrtc
from app.files.checks import BadValueError, format_for_error
from app.files.reading import read_json
from app.kernels.problems import OPERATIONS, Problem, tuning_key
from app.lab.bench.results import FILE, Result, Table, table_record
from app.lab.user_kernel.header import SIZES
from app.lab.user_kernel.row import UserVariant
from app.main_job.result import Timing
from app.main_job.statistics import CLOCK_STEP_MS
from app.records import bench as records
from app.records.bench import Bench, TimedRow
from app.records.derive import check_for_type
from app.records.parts import Peaks
from app.records.user_kernels import KernelRecord, Source
from app.terminal.output import write_json

ROW = tuple(one.name for one in fields(Result))
REMEDY = "let bench FILE.cu --record write it again"


def describe_source(row: UserVariant) -> Source:
    """Return what identifies a user's file in a record: its name, its SHA-256 and the registry row that it names."""
    like = None if row.since is None else f"{row.operation}:{row.since}"
    return {"file": row.name, "sha256": source_sha256(row.path.read_text(encoding="utf-8")), "like": like}


def source_sha256(text: str) -> str:
    r"""Return the SHA-256 of a kernel's text, with line ends ``\n``."""
    return hashlib.sha256(text.encode()).hexdigest()


def write_record(bench: Bench, source: Source, author: str, path: Path, *, overwrite: bool) -> bool:
    """Write a record if the kernel is correct, else print why not. Return whether it was written. Raises UserError."""
    record: KernelRecord = {
        "schema": "lenet5-inference/kernel-record/1",
        "version": VERSION,
        "nvrtc": ".".join(map(str, import_nvrtc().getVersion())),
        "author": author,
        "source": source,
        "bench": bench,
    }
    try:
        timed_rows(record)
    except BadValueError as error:
        print_to_stderr(f"no record is written: {error}")
        return False
    write_json(record, path, overwrite=overwrite)
    return True


def read_record(path: Path) -> KernelRecord:
    """Read a record. Raises UserError if the file is no record, or if its figures do not follow from its samples."""
    return cast(KernelRecord, read_json(path, _check_record, REMEDY))


def timed_rows(record: KernelRecord) -> list[tuple[records.Table, TimedRow]]:
    """Return (table, row) of each time of the record's kernel. Raises BadValueError if none exists or one is wrong."""
    found: list[tuple[records.Table, TimedRow]] = []
    reason = "the report has no row of it"
    for table in record["bench"]["tables"]:
        for row in table["rows"]:
            if row["kind"] != FILE:
                continue
            name, place = record["source"]["file"], f"{row['name']} on {table['item']}, {row['dtype']}"
            if row["name"] != name:
                raise BadValueError(f"{format_for_error(row['name'])} is timed, and not {name}")
            if row["wrong"]:
                raise BadValueError(f"{place}, is wrong: {row['reason']}")
            if row["ms"] is None:
                reason = f"{place}: {row['reason']}"
            elif row["error"] is None or row["error"] > 1 or not row.get("samples"):
                raise BadValueError(f"{place}, has a time without a check or without samples")
            else:
                found.append((table, row))
    if not found:
        raise BadValueError(f"{record['source']['file']} was not timed: {reason}")
    return found


def table_agrees_with_samples(table: records.Table, peaks: Peaks) -> bool:
    """Return whether a table's figures equal those computed from its samples. Malformed tables raise various errors."""
    problems = {dtype: _parse_problem(key) for dtype, key in table["problems"].items()}
    rows = [Result(**{name: row[name] for name in ROW}) for row in table["rows"]]  # type: ignore[literal-required]
    derived = Table(table["item"], table["operation"], table["is_op"], table["images"], problems, tuple(rows))
    return table_record(derived, peaks) == table and all(_row_agrees_with_samples(row) for row in rows if row.samples)


def _check_record(value: Any) -> KernelRecord:
    record: KernelRecord = check_for_type(KernelRecord)(value)
    timed_rows(record)
    for table in record["bench"]["tables"]:
        try:
            follows = table_agrees_with_samples(table, record["bench"]["peaks"])
        except (ArithmeticError, LookupError, TypeError, ValueError):  # a problem that does not exist
            follows = False
        if not follows:
            raise BadValueError(f"the figures of {format_for_error(table['item'])} do not follow from its samples")
    return record


def _row_agrees_with_samples(row: Result) -> bool:
    """Return whether median, spread and number of runs agree with the samples, which are rounded."""
    again = Timing(tuple(row.samples)).json_row
    pairs = ((row.ms, again["ms"]), (row.spread_ms, again["spread_ms"]))
    same = all(abs((a or 0.0) - (b or 0.0)) <= 2 * CLOCK_STEP_MS and (a is None) == (b is None) for a, b in pairs)
    return same and row.runs == again["runs"]


def _parse_problem(key: str) -> Problem:
    """Return the problem that the text ``key`` (its ``tuning_key``) describes. Raises various errors for other text."""
    operation, *words = key.split(" ")
    kind = {name: kind for kind, name in OPERATIONS.items() if name in SIZES}[operation]
    read: dict[Any, Any] = {int: int, bool: "True".__eq__, str: str}
    types = {one.name: one.type for one in fields(kind)}
    found: Problem = kind(**{name: read[types[name]](text) for name, text in (word.split("=") for word in words)})
    if tuning_key(found) != key:
        raise ValueError(key)
    return found
