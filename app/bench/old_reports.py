"""The figures of the five old reports, and a table of one report's figures beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    shown,
    text,
)
from app.files.checks import whole as whole_number
from app.files.reading import present, read_json
from app.precision import BY_NAME, SHORT
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms

PATH = Path(__file__).parents[2] / "docs" / "benchmarks" / "old_reports.json"
SCHEMA = "lenet5-inference/old-reports/1"
MS = {"ms": 1.0, "s": 1e3}  # unit → milliseconds
REMEDY = "restore it from the repository"
Row = Mapping[str, Any]


def _version(value: Any) -> dict[str, Any]:
    version: dict[str, Any] = _VERSION(value)
    if ("ops" in version) == ("sum" in version):
        raise BadValueError("neither ops nor sum, or both")
    return version


def _shares(value: Any) -> dict[str, float]:
    shares: dict[str, float] = mapping(number(0, 1))(value)
    for name in shares:
        if not (name.isdecimal() and len(name) < 10):
            raise BadValueError(f"{shown(name)} is not a number of images")
    return shares


_LINE, _COUNT, _TIME = text(4000), whole_number(1, 10**12), number(1e-9, 1e15)
_VERSION = fields(
    {
        "version": _LINE,
        "images": _COUNT,
        "unit": one_of(*MS),
        "ops": row(_TIME, _TIME),
        "sum": _TIME,
        "variant": nullable(_LINE),
        "dtype": one_of(*SHORT),
        "at_most": flag,
    },
    optional=("ops", "sum", "dtype", "at_most"),
)
_SYSTEM = fields(
    {
        "card": _LINE,
        "year": _COUNT,
        "whole_program": flag,
        "gains": mapping(_TIME),
        "versions": items(_version, least=1),
    },
    optional=("gains",),
)
_TRAINING = fields(
    {
        "year": _COUNT,
        "seconds": items(fields({"configuration": _LINE, "cpu": _TIME, "gpu": _TIME})),
        "shares": mapping(number(0, 1)),
    }
)
_SYSTEMS = fields(dict.fromkeys(("lenet5", "fa19", "k7", "minidnn86"), _SYSTEM))
CHECK = document(
    SCHEMA, fields({"accuracy": mapping(_shares), "training": _TRAINING, "systems": _SYSTEMS}, others=True)
)


@dataclass(frozen=True)
class OldVersion:
    """One version in an old report.

    ops: times of conv1 and conv2 in ms over ``images`` images; empty where the report gives only ``sum_ms``.
    at_most: the report gives ``sum_ms`` only as an upper bound. variant, dtype: our row for the same step; variant is
    None where we have none.
    """

    version: str
    images: int
    ops: tuple[float, ...]
    sum_ms: float
    at_most: bool
    variant: str | None
    dtype: str


@dataclass(frozen=True)
class OldReport:
    """The kernel times in a report. whole_program: of whole runs. gains: idea → times as fast, as the report says."""

    card: str
    year: int
    whole_program: bool
    versions: Sequence[OldVersion]
    gains: Mapping[str, float]

    def version(self, name: str, images: int) -> OldVersion:
        """Return the version of that name. Raises UserError if there is none."""
        for found in self.versions:
            if (found.version, found.images) == (name, images):
                return found
        raise _missing(f"version {name!r} over {images:,} images")

    def gain(self, name: str) -> float:
        """Return how many times as fast that idea made the program. Raises UserError if the report does not give it."""
        if name not in self.gains:
            raise _missing(f"gain {name!r}")
        return self.gains[name]


def _missing(what: str) -> UserError:
    return UserError(f"{PATH.name} has no {what}: {REMEDY}")


def load(path: Path = PATH) -> dict[str, Any]:
    """Read and check the document of all reports. Raises UserError."""
    if not present(path):
        raise UserError(f"{path} is missing: {REMEDY}")
    found: dict[str, Any] = read_json(path, CHECK, REMEDY)
    return found


def kernel_reports(found: Mapping[str, Any]) -> dict[str, OldReport]:
    """Return system → the kernel times in its report, all in ms."""
    return {
        name: OldReport(
            *(system["card"], system["year"], system["whole_program"]),
            [_in_ms(entry) for entry in system["versions"]],
            system.get("gains", {}),
        )
        for name, system in found["systems"].items()
    }


def _in_ms(entry: Row) -> OldVersion:
    unit = MS[entry["unit"]]
    ops = tuple(time * unit for time in entry.get("ops", ()))
    return OldVersion(
        entry["version"],
        entry["images"],
        ops,
        sum(ops) if ops else entry["sum"] * unit,
        entry.get("at_most", False),
        entry["variant"],
        entry.get("dtype", "float32"),
    )


def totals_over(bench: Row, images: int | None = None) -> Sequence[Row]:
    """Return a bench document's sums over a batch (default: the main one); none if that batch was not measured."""
    batches = [bench] if images is None else [batch for batch in bench["batches"] if batch["images"] == images]
    totals: Sequence[Row] = batches[0]["totals"] if batches else []
    return totals


def best_total(bench: Row, dtype: str, images: int | None = None) -> Row | None:
    """Return the sums of our kernel whose convolutions together take the least time over that batch."""
    rows = [row for row in totals_over(bench, images) if row["kind"] == OURS and row["dtype"] == dtype]
    return min((row for row in rows if row["sum_ms"]), key=lambda row: row["sum_ms"], default=None)


def beside_old(bench: Row, report: OldReport) -> tuple[str, list[str], list[list[str]]]:
    """Return a table (title, head, rows): each version in the report beside our times for the same step and batch.

    bench: a document that ``bench`` wrote.
    """
    rows = []
    for old in report.versions:
        own: list[float | None] = [None, None, None]
        if old.variant and report.whole_program:
            own[2] = _whole_ms(bench, old.variant, old.images)
        elif old.variant:
            totals = totals_over(bench, old.images)
            own = _op_times(
                bench, next((row for row in totals if (row["name"], row["dtype"]) == (old.variant, old.dtype)), None)
            )
        rows.append(_row(old.version, old, old.variant or "–", own))
    rows += _best_here(bench, report)
    what, span = "conv1, conv2 and their sum", ""
    if report.whole_program:
        what, span = "the whole program", ", from images in page-locked memory to labels on the host"
    head = ["version of the report", "images", "conv1 ms", "conv2 ms", "ms", "here", "conv1 ms", "conv2 ms", "ms", "×"]
    if report.whole_program:  # there are no op times to show
        keep = (0, 1, 4, 5, 8, 9)
        head, rows = [head[at] for at in keep], [[row[at] for at in keep] for row in rows]
    cpu = bench["cpu"]
    where = f"{bench['device']['name']}, {bench['date']} (CPU: {cpu['name']}, one thread, NumPy {cpu['numpy']})"
    return (
        f"The report of {report.year} ({report.card}) timed {what}. Here the same steps ran on {where}{span}:",
        head,
        rows,
    )


def _row(version: str, old: OldVersion, variant: str, own: Sequence[float | None]) -> list[str]:
    """Cells: the report's times, ours (conv1, conv2, sum), and the speed-up."""
    there = [format_ms(ms) for ms in old.ops] or ["", ""]
    total = f"{'< ' if old.at_most else ''}{format_ms(old.sum_ms)}"
    gain = format_factor(speedup(old.sum_ms, own[2]))
    return [version, f"{old.images:,}", *there, total, variant, *map(format_ms, own), gain]


def _op_times(bench: Row, total: Row | None) -> list[float | None]:
    """Our times of conv1 and conv2, and their sum."""
    if total is None:
        return [None, None, None]
    return [*(total["ops"].get(table["item"]) for table in bench["tables"] if table["is_op"]), total["sum_ms"]]


def _best_here(bench: Row, report: OldReport) -> list[list[str]]:
    """Rows of our best in each type over the report's largest batch, beside the report's best."""
    images = max(old.images for old in report.versions)
    theirs = min((old for old in report.versions if old.images == images), key=lambda old: old.sum_ms)
    rows = []
    for precision in (BY_NAME["fp32"], BY_NAME["fp16"]):
        name, own = "auto", [None, None, _whole_ms(bench, "auto", images, precision.name)]
        if not report.whole_program:
            best = best_total(bench, precision.dtype, images)
            name, own = best["name"] if best else "", _op_times(bench, best)
        if own[2] is not None:
            rows.append(_row(f"the best of both, {precision.name} here", theirs, name, own))
    return rows


def _whole_ms(bench: Row, name: str, images: int, precision: str = "fp32") -> float | None:
    """The whole program's time with that variant for all convolutions."""
    batch = next((batch for batch in bench["batches"] if batch["images"] == images), None)
    rows = batch["whole_program"] if batch else []
    return next((row["ms"] for row in rows if (row["conv"], row["precision"]) == (name, precision)), None)
