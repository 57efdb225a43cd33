"""The figures of the five old reports, and a table of one report's figures beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.document import Row, fastest_row, first_row
from app.bench.ladder.results import OURS
from app.errors import UserError
from app.files.checks import (
    BadValueError,
    document,
    fields,
    flag,
    items,
    mapping,
    nullable,
    number,
    one_of,
    row,
    text,
    whole,
)
from app.files.reading import present, read_json
from app.network.accuracy import COUNTED
from app.precision import BY_DTYPE, BY_NAME, Precision
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms

PATH = Path(__file__).parents[2] / "docs" / "benchmarks" / "old_reports.json"
SCHEMA = "lenet5-inference/old-reports/1"
MS = {"ms": 1.0, "s": 1e3}  # unit → milliseconds
REMEDY = "restore it from the repository"


@dataclass(frozen=True)
class OldVersion:
    """One version in an old report, with its times in ms over ``images`` images.

    ops: times of conv1 and conv2; empty where the report gives only ``sum_ms``. at_most: the report gives ``sum_ms``
    only as an upper bound. variant, dtype: our row for the same step; variant is None where we have none.
    """

    version: str
    images: int
    ops: Sequence[float]
    sum_ms: float
    variant: str | None
    dtype: str = "float32"
    at_most: bool = False


@dataclass(frozen=True)
class OldReport:
    """The kernel times in a report. whole_program: times of whole runs."""

    card: str
    year: int
    whole_program: bool
    versions: Sequence[OldVersion]

    def version(self, name: str, images: int) -> OldVersion:
        """Return the version of that name. Raises UserError if there is none."""
        for found in self.versions:
            if (found.version, found.images) == (name, images):
                return found
        raise UserError(f"{PATH.name} has no version {name!r} over {images:,} images: {REMEDY}")


_LINE, _COUNT, _TIME, _SHARE = text(4000), whole(1, 10**12), number(1e-9, 1e15), number(0, 1)
_COUNTS = [str(count) for count in COUNTED]
_VERSION = fields(
    {
        "version": _LINE,
        "images": _COUNT,
        "unit": one_of(*MS),
        "ops": row(_TIME, _TIME),
        "sum": _TIME,
        "variant": nullable(_LINE),
        "dtype": one_of(*BY_DTYPE),
        "at_most": flag,
    },
    optional=("ops", "sum", "dtype", "at_most"),
)


def _version(value: Any) -> OldVersion:
    found = _VERSION(value)
    if ("ops" in found) == ("sum" in found):
        raise BadValueError("neither ops nor sum, or both")
    unit = MS[found.pop("unit")]
    times = [time * unit for time in found.pop("ops", ())]
    sum_ms = sum(times) if times else found.pop("sum") * unit
    return OldVersion(**found, ops=times, sum_ms=sum_ms)


_REPORT = fields({"card": _LINE, "year": _COUNT, "whole_program": flag, "versions": items(_version, least=1)})
_TRAINING = fields(
    {
        "year": _COUNT,
        "seconds": items(fields({"configuration": _LINE, "cpu": _TIME, "gpu": _TIME})),
        "shares": mapping(_SHARE),
    }
)
_ACCURACY = fields(dict.fromkeys(_COUNTS, _SHARE), optional=_COUNTS)
_SYSTEMS = dict.fromkeys(("lenet5", "fa19", "k7", "minidnn86"), lambda value: OldReport(**_REPORT(value)))
_ALL = {"accuracy": mapping(_ACCURACY), "training": _TRAINING, "systems": fields(_SYSTEMS)}
CHECK = document(SCHEMA, fields(_ALL, others=True))


def load(path: Path = PATH) -> dict[str, Any]:
    """Read and check the document of all reports; ``systems`` holds an ``OldReport`` for each. Raises UserError."""
    if not present(path):
        raise UserError(f"{path} is missing: {REMEDY}")
    found: dict[str, Any] = read_json(path, CHECK, REMEDY)
    return found


def batch_of(bench: Row, images: int | None = None) -> Row:
    """Return a bench document's ``totals`` and ``whole_program`` over a batch (default: the main one).

    Both are empty for a batch that was not measured.
    """
    if images is None:
        return bench
    return first_row(bench["batches"], images=images) or {"totals": (), "whole_program": ()}


def best_total(bench: Row, dtype: str, images: int | None = None) -> Row:
    """Return the sums of our kernel with the least total time of the convolutions over that batch."""
    rows = batch_of(bench, images)["totals"]
    return fastest_row((row for row in rows if row["kind"] == OURS and row["dtype"] == dtype), "sum_ms")


def beside_old(bench: Row, report: OldReport) -> tuple[str, list[str], list[list[str]]]:
    """Return a table (title, head, rows): each version in the report beside our times for the same step and batch.

    bench: a document that ``bench`` wrote.
    """
    rows = []
    for old in report.versions:
        own = _own_ms(bench, report, old.images, old.variant, BY_DTYPE[old.dtype])
        rows.append(_row(old.version, old, old.variant or "–", own))
    rows += _best_here(bench, report)
    what, span, ops = "conv1, conv2 and their sum", "", ["conv1 ms", "conv2 ms"]
    if report.whole_program:  # there are no op times to show
        what, span, ops = "the whole program", ", from images in page-locked memory to labels on the host", []
    cpu = bench["cpu"]
    where = f"{bench['device']['name']}, {bench['date']} (CPU: {cpu['name']}, one thread, NumPy {cpu['numpy']})"
    return (
        f"The report of {report.year} ({report.card}) timed {what}. Here the same steps ran on {where}{span}:",
        ["version of the report", "images", *ops, "ms", "here", *ops, "ms", "×"],
        rows,
    )


def _row(version: str, old: OldVersion, variant: str, own: Sequence[float | None]) -> list[str]:
    """Cells: the report's times, ours (those of the ops, then the total), and the speed-up."""
    *ops, own_ms = own
    there = [format_ms(old.ops[at] if old.ops else None) for at in range(len(ops))]
    total = f"{'< ' if old.at_most else ''}{format_ms(old.sum_ms)}"
    gain = format_factor(speedup(old.sum_ms, own_ms))
    return [version, f"{old.images:,}", *there, total, variant, *map(format_ms, own), gain]


def _own_ms(bench: Row, report: OldReport, images: int, name: str | None, precision: Precision) -> list[float | None]:
    """Our times with that kernel: of the ops unless the report timed whole programs, then in all."""
    batch = batch_of(bench, images)
    if report.whole_program:
        return [first_row(batch["whole_program"], conv=name, precision=precision.name).get("ms")]
    total = first_row(batch["totals"], name=name, dtype=precision.dtype)
    ops = (table["item"] for table in bench["tables"] if table["is_op"])
    return [*map(total.get("ops", {}).get, ops), total.get("sum_ms")]


def _best_here(bench: Row, report: OldReport) -> list[list[str]]:
    """Rows of our best in each type over the report's largest batch, beside the report's best."""
    images = max(old.images for old in report.versions)
    theirs = min((old for old in report.versions if old.images == images), key=lambda old: old.sum_ms)
    rows = []
    for precision in (BY_NAME["fp32"], BY_NAME["fp16"]):
        name = "auto" if report.whole_program else best_total(bench, precision.dtype, images).get("name", "")
        own = _own_ms(bench, report, images, name, precision)
        if own[-1] is not None:
            rows.append(_row(f"the best of both, {precision.name} here", theirs, name, own))
    return rows
