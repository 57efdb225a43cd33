"""Build the main job's report as a JSON document, and format that document as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from app.base.precision import SHORT
from app.cuda import device as devices
from app.main_job.result import Cycle, Outcome, Timing, bimodality_warnings
from app.main_job.statistics import rate_or_zero, summarise_samples
from app.network.graph import Graph
from app.network.verdicts import Accuracy, Agreement, Answers
from app.network.weights import Weights
from app.terminal.text import WIDTH, Column, fields, format_ms, paragraph, table
from data_tools.dataset import Dataset

if TYPE_CHECKING:  # the main job starts faster without them
    from app.records import report as records

SHOWN_LABELS = 6
SHOWN_DIFFERENCES = 10
DIFFERENCE = "  image {index}: {label} instead of {reference}, float64 margin {margin:.3g} ({kind})"
BARE = ("numpy", "cupy", "context")  # one-off costs of any program that uses the GPU through CuPy
VERDICTS = {True: "PASSED", False: "FAILED", None: "not judged"}
TRACED = (
    "H2D {h2d_ms:.3f} ms, kernels {kernels_ms:.3f} ms, D2H {d2h_ms:.3f} ms, together {span_ms:.3f} ms; "
    "{overlap:.0%} of copy time behind kernels"
)
COLUMNS = [
    *(Column(head, left=True) for head in ("layer", "kernel")),
    *(Column("ms"), Column("± ms"), Column("GFLOP", optional=1)),
    *(Column(head) for head in ("TFLOP/s", "GB/s", "share")),
]


def build_report(
    graph: Graph,
    weights: Weights,
    data: Dataset,
    batch: int,
    outcome: Outcome,
    accuracy: Accuracy,
    one_off_ms: Mapping[str, float],
    command_ms: float,
    compared_agreement: Agreement | None = None,
) -> records.Report:
    """Return the report as a JSON document. All times are in ms unless the name gives another unit.

    one_off_ms: phase of the start → ms. command_ms: time since the command started. compared_agreement: agreement of
    the labels of ``outcome.compared`` with the reference.
    """
    on_card = outcome.on_card
    names = data.classes and (weights.classes or data.classes)
    first = outcome.labels[:SHOWN_LABELS].tolist()
    total = sum(layer["ms"] for layer in outcome.layers)
    return {
        "schema": "lenet5-inference/report/4",
        "device": cast("records.Card | records.Processor", outcome.device),
        "network": {"name": graph.network.name, "input_shape": list(graph.network.input_shape)},
        "weights": weights.json_record,
        "data": {"source": data.source, "split": data.split, "dtype": data.images.dtype.name},
        "precision": SHORT[outcome.arithmetic],
        "batch": batch,
        "settings": cast("records.GpuSettings | records.CpuSettings", outcome.settings),
        "passed": accuracy.passed,
        "agreement": _agreement_record(accuracy.agreement),
        "accuracy": _accuracy_record(accuracy.answers, outcome.cycle),
        "first_labels": [names[label] if names else str(label) for label in first],
        "layers": [{**layer, "share": layer["ms"] / total if total else None} for layer in outcome.layers],
        "op_times": [*outcome.op_times],
        "on_card_ms": None if on_card is None else {**_times_record(on_card), "images": outcome.on_card_images},
        "raw_copy_ms": None if outcome.raw_copy is None else _times_record(outcome.raw_copy),
        "compare": _comparison_record(outcome, compared_agreement),
        "pipeline": outcome.usage,
        "power": outcome.power,
        "end_to_end_ms": _times_record(outcome.end_to_end),
        "images_per_s": rate_or_zero(batch, outcome.end_to_end.median) * 1e3,
        "device_memory_bytes": outcome.device_bytes,
        "peak_device_memory_bytes": outcome.peak_device_bytes,
        "one_off_ms": cast("records.StartUp", dict(one_off_ms)),
        "once_ms": sum(one_off_ms.values()),
        "once_own_ms": startup_ms_beyond_cupy(one_off_ms),
        "command_ms": command_ms,
        "limit": outcome.limit,
        "notes": [*outcome.notes, *bimodality_warnings(outcome)],
    }


def startup_ms_beyond_cupy(spent: Mapping[str, float]) -> float:
    """Return the start-up time in ms beyond that of any program that uses CuPy. spent: phase of start-up → ms."""
    return sum(ms for name, ms in spent.items() if name not in BARE)


def _agreement_record(agreement: Agreement) -> records.Agreement:
    return {
        "passed": agreement.holds,
        "verdict": agreement.verdict,
        "reference": agreement.source,
        "compared": agreement.compared,
        "near_ties_allowed": agreement.most,
        "differences": _difference_records(agreement),
    }


def _difference_records(agreement: Agreement) -> list[records.Difference]:
    return [cast("records.Difference", vars(difference)) for difference in agreement.differences]


def _accuracy_record(answers: Answers, cycle: Cycle | None) -> records.Accuracy:
    """Return the verdict on the answers as a record. cycle: counts of all passes, if the images were repeated."""
    found = cast("records.Accuracy", vars(answers))
    return found if cycle is None else {**found, "correct": cycle.correct, "total": cycle.total, "expected": None}


def _comparison_record(outcome: Outcome, agreement: Agreement | None) -> records.ComparedPrecision | None:
    compared = outcome.compared
    if compared is None or agreement is None:
        return None
    return {
        "precision": compared.precision,
        "end_to_end_ms": _times_record(compared.end_to_end),
        "gain": rate_or_zero(outcome.end_to_end.median, compared.end_to_end.median),
        "compared": agreement.compared,
        "differences": _difference_records(agreement),
    }


def _times_record(timing: Timing) -> records.Times:
    return cast("records.Times", summarise_samples(timing.samples, (50, 90, 99)) | {"min": min(timing.samples)})


def as_text(report: records.Report, width: int = WIDTH) -> str:
    """Return the report as plain text without colours, with at most ``width`` characters a line."""
    blocks = [
        _header_lines(report, width),
        _verdict_lines(report, width),
        _layer_lines(report, width),
        _time_lines(report, width),
        paragraph(report["limit"], width),
        _comparison_lines(report, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _header_lines(report: records.Report, width: int) -> list[str]:
    device, weights = report["device"], report["weights"]
    unvouched = "" if weights["vouched"] else "; no checksum in it says that it is whole"
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report["settings"].items())
    more = ", …" if report["batch"] > len(report["first_labels"]) else ""
    pairs = [
        ("device", devices.format_device(device)),
        ("weights", f"{weights['path']} (sha256 {weights['sha256'][:12]}…{unvouched})"),
        ("images", f"{report['data']['source']} ({report['data']['dtype']})"),
        ("settings", settings),
        ("first", f"{', '.join(report['first_labels'])}{more}"),
        *(("note", note) for note in report["notes"]),
    ]
    title = f"{report['network']['name']} in {report['precision']} on {report['batch']:,} images"
    return [title, *fields(pairs, width)]


def _verdict_lines(report: records.Report, width: int) -> list[str]:
    """Return the lines of both verdicts. A warning replaces the line that says that no accuracy limit was set."""
    agreement, answers = report["agreement"], report["accuracy"]
    correct, total = answers["correct"], answers["total"]
    share = "unlabelled" if correct is None else f"{correct:,} / {total:,} correct = {correct / total:.2%}"
    pairs = []
    if answers["passed"] is not None or not answers["warning"]:
        pairs.append(("answers", f"{VERDICTS[answers['passed']]}: {answers['verdict']}"))
    if answers["warning"]:
        pairs.append(("answers", f"WARNING: {answers['warning']}"))
    pairs.append(("agreement", f"{VERDICTS[agreement['passed']]}: {agreement['verdict']}"))
    return [f"Accuracy: {share}", *fields(pairs, width), *_difference_lines(agreement["differences"])]


def _difference_lines(differences: Sequence[records.Difference]) -> list[str]:
    """Return one line for each of the first labels that differ from the reference's."""
    kinds = {True: "near-tie", False: "WRONG"}
    lines = [DIFFERENCE.format(kind=kinds[one["excused"]], **one) for one in differences[:SHOWN_DIFFERENCES]]
    more = len(differences) - SHOWN_DIFFERENCES
    return [*lines, f"  … and {more} more (all in --json)"] if more > 0 else lines


def _comparison_lines(report: records.Report, width: int) -> list[str]:
    """Return the speed-up and differing labels that ``--compare`` found; no lines without that option."""
    other = report["compare"]
    if other is None:
        return []
    changed, ms = len(other["differences"]), other["end_to_end_ms"]["p50"]
    line = (
        f"--precision {other['precision']} takes {ms:.3f} ms end to end, {other['gain']:.2f} × as fast, and "
        f"{changed} label{'' if changed == 1 else 's'} of {other['compared']:,} compared differ from the reference"
    )
    return [*paragraph(line, width), *_difference_lines(other["differences"])]


def _layer_lines(report: records.Report, width: int) -> list[str]:
    on_gpu = report["device"]["kind"] == "cuda"
    what = "images on the card, no transfers; medians of CUDA events" if on_gpu else "thread time ÷ threads"
    images = report["layers"][0]["images"]
    rows = [*map(_layer_cells, report["layers"])]
    if on_gpu and report["op_times"]:
        remark = "Op times (convolution and bias alone, output unpooled; no transfers)"
        rows += [[remark], *map(_layer_cells, report["op_times"])]
    return [*paragraph(f"Layers ({images:,} images; {what})", width), *table(COLUMNS, rows, width)]


def _layer_cells(layer: records.Layer) -> list[str]:
    return [
        layer["name"],
        layer["kernel"],
        format_ms(layer["ms"]),
        format_ms(layer["spread_ms"]),
        f"{layer['gflop']:.3f}",
        f"{layer['tflops']:.2f}",
        f"{layer['gbytes_per_s']:.0f}",
        "" if layer["share"] is None else f"{layer['share']:.1%}",
    ]


def _time_lines(report: records.Report, width: int) -> list[str]:
    pairs = []
    on_card, whole, raw = report["on_card_ms"], report["end_to_end_ms"], report["raw_copy_ms"]
    if on_card is not None:
        p90 = "" if on_card["p90"] is None else f", {on_card['p90']:.3f} p90"
        what = f"{on_card['images']:,} images; kernels only, no transfers"
        pairs.append(("on the card", f"{on_card['p50']:.3f} ms median{p90} ({what})"))
    if report["pipeline"] is not None:
        pairs.append(("in chunks, traced", TRACED.format_map(report["pipeline"])))
    transfers = "pinned host memory → host labels, transfers included" if on_card is not None else "images → labels"
    took = f"{whole['p50']:.3f} ms"
    if whole["runs"] > 1:
        quantiles = {"p50": whole["p50"], "p90": whole["p90"], "p99": whole["p99"]}
        told = ", ".join(f"{name} {ms:.3f} ms" for name, ms in quantiles.items() if ms is not None)
        took = f"{told} over {whole['runs']} runs"
    pairs.append(("end to end", f"{took} ({transfers}; host clock)"))
    if raw is not None:
        longer = f"end to end takes {rate_or_zero(whole['p50'], raw['p50']):.2f} × as long"
        pairs.append(("raw copy", f"{raw['p50']:.3f} ms for the same bytes in one piece; {longer}"))
    pairs.append(("throughput", f"{report['images_per_s']:,.0f} images/s end to end"))
    if report["power"] is not None:
        from app.main_job.power import power_text  # imported only here: few runs measure power

        pairs.append(("power", power_text(report["power"])))
    if report["device_memory_bytes"]:
        pipeline_mb, peak_mb = report["device_memory_bytes"] / 1e6, report["peak_device_memory_bytes"] / 1e6
        peak = f"{peak_mb:,.1f} MB at the peak (measuring the layers)"
        pairs.append(("device memory", f"{pipeline_mb:,.1f} MB for the pipeline, {peak}"))
    beyond = "NumPy, CuPy and the CUDA context" if report["device"]["kind"] == "cuda" else "NumPy"
    start_up = (
        f"{report['once_ms']:,.0f} ms from the start of the process to the first image, "
        f"{report['once_own_ms']:,.0f} ms beyond {beyond}"
    )
    pairs += [
        ("once", ", ".join(f"{name} {ms:,.0f} ms" for name, ms in report["one_off_ms"].items())),
        ("start-up", start_up),
        ("whole command", f"{report['command_ms'] / 1e3:,.2f} s so far, the measurements included"),
    ]
    return [f"Times for {report['batch']:,} images", *fields(pairs, width)]
