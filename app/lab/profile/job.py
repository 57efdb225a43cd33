"""Run ``main.py profile``: time the main job's kernels, copies and API calls; write timelines; count events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tqdm import tqdm

from app.base.clock import time_call
from app.base.errors import UserError
from app.base.interrupts import exit_on_interrupt
from app.commands.profile import ProfileRequest, rerun_arguments
from app.cuda import device
from app.drawing.svg import style_sheet
from app.drawing.warpgroups import draw_bus_chart, draw_warpgroup_timeline
from app.files.writing import replace_atomically
from app.lab.batch import random_images
from app.lab.profile import api_calls, counters, every_step
from app.lab.profile.text import as_text
from app.main_job.statistics import covered_ms, median, overlap_ms
from app.network.graph import Graph
from app.planning import tuning
from app.planning.choices import load_graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.planning.request import NetworkRequest
from app.records.parts import Card
from app.records.profile import Counter, Overlap, Profile, Row, Settings, Timeline
from app.terminal.output import publish_report
from data_tools.dataset import load_fashion_mnist

if TYPE_CHECKING:  # needs CuPy
    from app.lab.profile.spans import Span

RUNS = 20
WARMUP = 5
HOST, CARD = 1, 2  # process numbers in the trace


def profile(request: ProfileRequest) -> int:
    """Profile the main job, or with ``--every-step`` each kernel of the ladder. Return 0. Raises UserError."""
    with exit_on_interrupt():
        graph, weights, chosen = load_graph(request.network, shapes_only=True)
    if request.every_step:
        _refuse_options_with_every_step(request)
    device.require_gpu("profile")
    if request.every_step:
        with device.translate_gpu_errors():
            counted = every_step.count_step_events(
                graph, request.network.network or graph.network.name, request.batch, request.device
            )
        publish_report(counted, every_step.as_text, request.output)
        return 0
    with device.translate_gpu_errors():
        document = _profile_main_job(request, graph, chosen, str(weights.path))
    publish_report(document, as_text, request.output)
    return 0


def _refuse_options_with_every_step(request: ProfileRequest) -> None:
    """Raise UserError for options that ``--every-step`` sets by itself."""
    network, usual = request.network, NetworkRequest(network=request.network.network)
    for name, value in vars(network).items():
        if value != getattr(usual, name):
            option = f"no-{name}" if name in ("fuse", "sparse") else name
            raise UserError(f"--every-step chooses kernels and precisions itself: leave --{option} out")
    for name in ("counters", "trace", "timeline"):
        if getattr(request, name):
            raise UserError(f"--every-step prints counters alone: leave --{name} out")


def _profile_main_job(request: ProfileRequest, graph: Graph, chosen: Choices, weights: str) -> Profile:
    """Run and measure the main job, write the timelines that were asked for, and return the document."""
    from app.engine.gpu import GpuEngine
    from app.engine.request import chunk_size
    from app.lab.profile.spans import Recorder
    from app.lab.profile.timeline import first_kernel_shares, measure_timeline

    card = device.describe_gpu()
    images, source = load_images(graph, request.batch)
    chosen = replace(chosen, tuning=tuning.load(card["name"]))
    execution = plan(graph, card["architecture"], chosen, input_dtype=images.dtype.name)
    shares = request.timeline and first_kernel_shares(execution, len(images), card["multiprocessors"])
    streams, chunk = request.pipeline.streams, chunk_size(request.pipeline.chunk, request.batch)
    bar = tqdm(total=WARMUP + 3 * RUNS + 1, unit=" runs", disable=None)
    with GpuEngine(execution, chunk=chunk, streams=streams) as engine, bar:
        outputs = engine.allocate_outputs(request.batch)

        def enqueue_and_wait() -> None:
            """Run the batch in chunks, because a CUDA graph would hide the single launches."""
            engine.submit(images, outputs)
            engine.wait()

        def run() -> float:
            _, ms = time_call(enqueue_and_wait)
            bar.update()
            return ms

        for _ in range(WARMUP):
            run()
        plain = [run() for _ in range(RUNS)]
        with api_calls.record_calls() as calls:
            counted = [run() for _ in range(RUNS)]
        recorder = Recorder(engine)
        recorded: list[list[Span]] = []
        samples: list[float] = []
        for index in range(RUNS + 1):
            recorder.reset_clock()
            with api_calls.record_calls() as last_calls, recorder.record():
                sample = run()
            if index:  # skip the first run: it creates the events
                samples.append(sample)
                recorded.append(recorder.spans())
        settings: Settings = {"streams": streams, "chunk": engine.chunk, "fused": request.network.fuse, "runs": RUNS}
    if request.trace is not None:
        shown = trace_event_document(recorded[-1], last_calls, recorder.zero, card["name"])
        with replace_atomically(request.trace, overwrite=request.output.overwrite) as temporary:
            temporary.write_text(json.dumps(shown, allow_nan=False) + "\n", encoding="utf-8")
    stamped = measure_timeline(execution, images, shares) if shares else None
    if request.timeline is not None and stamped is not None:
        with replace_atomically(request.timeline, overwrite=request.output.overwrite) as temporary:
            temporary.write_text(timeline_page(stamped, request.batch, card["name"]), encoding="utf-8")
    rows, note = _collect_counters(request, recorded[-1]) if request.counters else ([], None)
    return {
        "schema": "lenet5-inference/profile/1",
        "weights": weights,
        "device": cast(Card, card),
        "network": graph.network.name,
        "images": source,
        "batch": request.batch,
        "precision": request.network.precision,
        "settings": settings,
        "end_to_end_ms": {"plain": median(plain), "counted": median(counted), "events": median(samples)},
        "rows": span_rows(recorded),
        "overlap": cast(Overlap, mean_overlap(recorded)),
        "api": api_calls.summarise_calls(calls, RUNS, sum(counted) / RUNS),
        "trace": None if request.trace is None else str(request.trace),
        "timeline": cast(Timeline | None, stamped),
        "counters": cast(list[Counter], rows),
        "counters_note": note,
    }


def timeline_page(stamped: Mapping[str, Any], batch: int, card: str) -> str:
    """Return the HTML page of ``--timeline`` with its two charts. stamped: result of ``measure_timeline``."""
    what = f"{batch:,} images, {stamped['kernel']}, {card}"
    charts = (
        draw_warpgroup_timeline(stamped, f"One multiprocessor's warpgroups: {what}"),
        draw_bus_chart(stamped, f"Bus and kernels: {what}"),
    )
    return (
        f'<!DOCTYPE html>\n<title>Timeline of {escape(what)}</title>\n<meta charset="utf-8">\n'
        f"<style>\n:root {{ color-scheme: light dark; }}\n{style_sheet()}</style>\n" + "\n".join(charts) + "\n"
    )


def load_images(graph: Graph, batch: int) -> tuple[np.ndarray, str]:
    """Return images, page-locked (N, C, H, W) uint8, and their source: Fashion-MNIST if its shape fits, else random."""
    from app.cuda.memory import pinned_array

    shape = graph.network.input_shape
    try:
        data = load_fashion_mnist("test") if shape == (1, 28, 28) else None
    except UserError:
        data = None
    if data is None:
        return random_images(shape, batch), "random bytes"
    images = pinned_array((batch, *shape), np.uint8)
    for at in range(0, batch, len(data.images)):
        part = images[at : at + len(data.images)]
        part[:] = data.images[: len(part)]
    return images, data.source


def span_rows(runs: Sequence[Sequence[Span]]) -> list[Row]:
    """Return a row for each kernel or copy of the runs, the slowest first; calls, total_ms and bytes are per run."""
    groups: dict[tuple[str, str, str], list[Span]] = {}
    for span in (span for run in runs for span in run):
        groups.setdefault((span.kind, span.layer, span.name), []).append(span)
    whole = sum(span.ms for run in runs for span in run)
    rows: list[Row] = []
    for (kind, layer, name), spans in groups.items():
        total, nbytes = sum(span.ms for span in spans), sum(span.nbytes for span in spans)
        rows.append(
            {
                "kind": kind,
                "layer": layer,
                "name": name,
                "calls": len(spans) / len(runs),
                "total_ms": total / len(runs),
                "share": total / whole if whole else 0.0,
                "min_ms": min(span.ms for span in spans),
                "average_ms": total / len(spans),
                "max_ms": max(span.ms for span in spans),
                "bytes": nbytes / len(runs) if nbytes else None,
                "gbytes_per_s": nbytes / total / 1e6 if nbytes and total else None,
            }
        )
    return sorted(rows, key=lambda row: -row["total_ms"])


def mean_overlap(runs: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Return the mean ms per run in which a copy to or from the host ran, a kernel ran, and both ran at once."""
    sums = np.zeros(3)
    for run in runs:
        copies = [(span.start, span.stop) for span in run if span.kind in ("h2d", "d2h")]
        kernels = [(span.start, span.stop) for span in run if span.kind == "kernel"]
        sums += covered_ms(copies), covered_ms(kernels), overlap_ms(copies, kernels)
    return dict(zip(("copies_ms", "kernels_ms", "both_ms"), (sums / len(runs)).tolist(), strict=True))


def _collect_counters(request: ProfileRequest, run: Sequence[Span]) -> tuple[list[dict[str, Any]], str | None]:
    """Return the hardware counters of the first chunk's kernels, a row each, and the reason if there are none."""
    second = [index for index, span in enumerate(run) if span.kind == "h2d"][1:2]
    launched = [span for span in run[: second[0] if second else None] if span.entry]
    counted, note = counters.collect_counters(rerun_arguments(request), [span.entry for span in launched])
    return counters.label_counter_rows(counted, launched), note


def trace_event_document(
    spans: Sequence[Span], calls: Sequence[api_calls.Call], zero: float, card: str
) -> dict[str, Any]:
    """Return a trace-event document for Perfetto (ui.perfetto.dev) or chrome://tracing; times are in microseconds.

    It has a row for the host's API calls and one for each stream. calls: times in seconds of the host's clock. zero:
    time of that clock at time 0 of the spans. card: the GPU's name.
    """
    rows: dict[tuple[int, int | None], str] = {(HOST, None): "host", (HOST, 0): "API calls", (CARD, None): card}
    rows |= {(CARD, stream): f"stream {stream + 1}" for stream in sorted({span.stream for span in spans})}
    events: list[dict[str, Any]] = []
    for (process, thread), name in rows.items():
        what = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
        events.append({**what, "ph": "M", "pid": process, "args": {"name": name}})
    for call in calls:
        events.append(
            _trace_event(HOST, 0, call.name, "api", (call.start - zero) * 1e6, (call.stop - call.start) * 1e6, {})
        )
    for span in spans:
        label = f"{span.layer} ({span.name})" if span.layer else span.name
        details: dict[str, Any] = {"entry": span.entry} if span.entry else {}
        if span.nbytes:
            details |= {"bytes": span.nbytes, "GB/s": span.nbytes / span.ms / 1e6 if span.ms else None}
        category = "kernel" if span.kind == "kernel" else "copy"
        events.append(_trace_event(CARD, span.stream, label, category, span.start * 1e3, span.ms * 1e3, details))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _trace_event(
    process: int, thread: int, name: str, category: str, start: float, length: float, details: dict[str, Any]
) -> dict[str, Any]:
    where = {"pid": process, "tid": thread, "ts": start, "dur": max(length, 0.0)}
    return {"name": name, "cat": category, "ph": "X", **where, "args": details}
