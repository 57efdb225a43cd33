"""Read the timed rows, the settings and the machine from each kind of JSON report."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.base.frozen import Frozen
from app.files.checks import BadValueError, format_for_error
from app.main_job.statistics import median
from app.records.bench import Bench
from app.records.networks import Train
from app.records.operate import Unit
from app.records.peers import Peers
from app.records.report import Report
from app.records.sweep import PipelineSweep, Sweep

Document = Mapping[str, Any]
LEAST_TIME, MOST_TIME = 1e-9, 1e12  # ms or s, the range that a clock can measure; keeps ratios of times finite
ROUNDING = 1e-6  # relative error of stored samples, which have fewer digits than their median


class TimedRow(Frozen):
    """A named time in a report. median, samples: in the unit ``unit`` (ms or s); older reports have no samples."""

    name: str
    median: float
    samples: tuple[float, ...]
    unit: Unit = "ms"


def _timed_row(name: str, part: Mapping[str, Any] | None, time: str = "ms") -> TimedRow | None:
    """Return a part of a report as a row; None without part or time. time: its time's key. Raises BadValueError."""
    if part is None or not part.get(time):
        return None
    if not isinstance(name, str):
        raise BadValueError(f"{format_for_error(name)} is no name")
    unit: Unit = "s" if "seconds" in time else "ms"
    found = TimedRow(name, part[time], tuple(part.get("samples", ())), unit)
    if not all(
        type(value) in (int, float) and LEAST_TIME <= value <= MOST_TIME for value in (found.median, *found.samples)
    ):
        raise BadValueError(f"{name} has a time that is none")
    if found.samples and not min(found.samples) * (1 - ROUNDING) <= found.median <= max(found.samples) * (1 + ROUNDING):
        raise BadValueError(f"{name} has a median that its samples cannot have")
    return found


def _report_rows(document: Report) -> Iterator[TimedRow | None]:
    yield _timed_row("on the card", document["on_card_ms"], "p50")
    yield _timed_row("end to end", document["end_to_end_ms"], "p50")
    yield _timed_row("raw copy", document["raw_copy_ms"], "p50")
    if document["compare"] is not None:
        yield _timed_row(
            f"end to end in {document['compare']['precision']}", document["compare"]["end_to_end_ms"], "p50"
        )
    for layer in document["layers"]:
        yield _timed_row(layer["name"], layer)
    for layer in document["op_times"] if document["device"]["kind"] == "cuda" else ():  # on the CPU: layers again
        yield _timed_row(f"{layer['name']} alone", layer)


def _bench_rows(document: Bench) -> Iterator[TimedRow | None]:
    for table in document["tables"]:
        for row in table["rows"]:
            yield _timed_row(f"{table['item']} {row['name']} {row['dtype']}", row)
    for batch in document["batches"]:
        for program in batch["whole_program"]:
            name = f"program of {batch['images']} images, {program['conv']} {program['precision']}"
            yield _timed_row(name, program)


def _peers_rows(document: Peers) -> Iterator[TimedRow | None]:
    for one in document["comparisons"]:
        for row in one["rows"]:
            engine = " ".join(filter(None, (row["engine"], row["setting"])))
            name = f"{one['network']}, {one['images']:,} images: {engine} {row['precision']}"
            yield _timed_row(f"{name} on the card", row["on_card_ms"], "p50")
            yield _timed_row(f"{name} end to end", row["end_to_end_ms"], "p50")


def _train_rows(document: Train) -> Iterator[TimedRow | None]:
    seconds = [epoch["seconds"] for epoch in document["epochs"]]
    if seconds:
        yield _timed_row("an epoch", {"seconds": median(seconds), "samples": seconds}, "seconds")


def _sweep_rows(document: Sweep) -> Iterator[TimedRow | None]:
    for layer in document["layers"]:
        for point in layer["points"]:
            parameters = " ".join(f"{name}={value}" for name, value in point["parameters"].items())
            yield _timed_row(f"{layer['layer']} {parameters}", point)


def _pipeline_rows(document: PipelineSweep) -> Iterator[TimedRow | None]:
    for point in document["points"]:
        yield _timed_row(f"{point['streams']} streams, chunks of {point['chunk']}", point)


def _make_field_getter(*names: str) -> Callable[[Document], Mapping[str, Any]]:
    """Return a function that returns a document's fields with these names."""
    return lambda document: {name: document[name] for name in names}


def _run_settings(document: Report) -> Mapping[str, Any]:
    """Return a classification report's network, image type, precision, batch and settings, but no numbers of runs."""
    settings = {name: value for name, value in document["settings"].items() if name not in ("runs", "layer_runs")}
    return {
        "network": document["network"]["name"],
        "images": document["data"]["dtype"],
        **{name: document[name] for name in ("precision", "batch")},
        **settings,
    }


def _machine_names(document: Document) -> Mapping[str, Any]:
    """Return the name of the card and, in documents that may have times of the CPU, the name of the CPU."""
    named = {"device": document["card"] if "card" in document else document["device"]["name"]}
    return named | ({"cpu": document["cpu"]["name"]} if "cpu" in document else {})


def _software_versions(document: Document) -> Mapping[str, Any]:
    """Return the versions of driver and libraries, and the main job's weights; empty for a sweep."""
    names = ("driver", "cuda", "cupy", "numpy", "onnxruntime")
    weights = {"weights": document["weights"]["sha256"][:12]} if "weights" in document else {}
    device = document.get("device", {})
    return {**{name: device[name] for name in names if name in device}, **document.get("software", {}), **weights}


def _settings(*others: str) -> Callable[[Document], Mapping[str, Any]]:
    return lambda document: {**{name: document[name] for name in others}, **document["settings"]}


class Reader(Frozen):
    """Functions that read one kind of report for a comparison.

    rows: yields the timed rows, None for a missing time. settings, machine: return what must be equal in all reports.
    software: returns the versions, which may differ.
    """

    rows: Callable[[Any], Iterator[TimedRow | None]]
    settings: Callable[[Any], Mapping[str, Any]]
    machine: Callable[[Any], Mapping[str, Any]] = _machine_names
    software: Callable[[Any], Mapping[str, Any]] = _software_versions


# Schema → how to read it.
KINDS = {
    "lenet5-inference/report/4": Reader(_report_rows, _run_settings),
    "lenet5-inference/bench/1": Reader(_bench_rows, _settings("subject", "images")),
    "lenet5-inference/peers/2": Reader(_peers_rows, _make_field_getter()),
    "lenet5-inference/train/1": Reader(_train_rows, _settings("workers"), _make_field_getter(), _make_field_getter()),
    "lenet5-inference/sweep/1": Reader(
        _sweep_rows, _make_field_getter("network", "operation", "variant", "precision", "fused", "images")
    ),
    "lenet5-inference/pipeline-sweep/1": Reader(_pipeline_rows, _make_field_getter("network", "precision", "images")),
}


def timed_rows(document: Document) -> dict[str, TimedRow]:
    """Return the timed rows of a report by name. Raises BadValueError for an incomplete report."""
    found = [row for row in _read_complete_report(KINDS[document["schema"]].rows, document) if row is not None]
    return {row.name: row for row in found}


def report_context(document: Document) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return machine, settings and software of a report. Raises BadValueError for an incomplete report."""
    kind = KINDS[document["schema"]]
    machine, settings, software = (
        _read_complete_report(read, document) for read in (kind.machine, kind.settings, kind.software)
    )
    return dict(machine), dict(settings), dict(software)


def _read_complete_report(read: Callable[[Document], Any], document: Document) -> Any:
    """Return ``read(document)`` as a list or dict. Raises BadValueError for a missing field or one of wrong type."""
    try:
        found = read(document)
        return [*found] if isinstance(found, Iterator) else dict(found)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(f"a field is missing or of another type ({type(error).__name__}: {error})") from None
